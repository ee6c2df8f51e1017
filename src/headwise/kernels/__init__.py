"""Kernels: C++ on a CPU, Triton on a GPU, dropout, linear layers, and the choice among them."""
