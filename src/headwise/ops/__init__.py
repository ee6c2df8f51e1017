"""Operators: what attention, maps and losses compute, and the kernels for it.

A folder per operator. `naive.py`, in three of them, is the equation of the papers: read it first.
`reference.py` is the mathematics in plain torch, with gradients. `operator.py` is what the rest of
headwise calls; `cpu.py` computes it by C++ (`cpp/`), `triton.py` by Triton (`triton/`).
`dispatch.py` chooses for each call, and says why. Nothing here imports other packages of headwise.
"""
