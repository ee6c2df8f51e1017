"""Dropout: by C++ on a CPU (`cpu.py`), else by torch; `operator.py` has layers and gradients."""
