"""Operators: what attention, maps and losses compute, and who computes it.

A folder per operator. `reference.py` is the mathematics in plain torch: read it first.
`operator.py` is what the rest of headwise calls; `cpu.py` computes it by C++ (`cpp/`), `triton.py`
by Triton (`triton/`). `dispatch.py` chooses for each call, and says why. Nothing here imports
other packages of headwise.
"""
