"""The C++ kernels: sources, their compilation (`build.py`), and calls of them (`call.py`)."""
