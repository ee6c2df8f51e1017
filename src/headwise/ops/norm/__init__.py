"""Layer norm: by C++ (`cpu.py`) in training in bfloat16 on a CPU (`operator.py`), else by torch."""
