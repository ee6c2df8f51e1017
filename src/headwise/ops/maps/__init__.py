"""The maps from scores to weights: softmax, α-entmax, sparsemax.

float32 on a CPU is computed by `cpu.py`, on a GPU by `triton.py`; float64, other devices and
machines without a compiler or Triton by `reference.py`. `operator.py` has the gradients.
"""
