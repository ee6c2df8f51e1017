"""Losses over a vocabulary: cross-entropy and the entmax losses.

float32 and half precision are computed by `cpu.py` on a CPU and by `triton.py` on a GPU; float64
and machines without a compiler or Triton by `reference.py`. `operator.py` has the gradients.
"""
