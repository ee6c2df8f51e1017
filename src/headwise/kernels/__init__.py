"""What computes: C++ on a CPU, Triton on a GPU, dropout and linear maps, and which is chosen."""
