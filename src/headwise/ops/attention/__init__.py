"""Attention without weights in memory: context = map(q k' / sqrt(E)) v.

On a CPU `cpu.py` computes it in training, `cpu_few.py` in decoding, `cpu_sparse.py` for a sparse
pattern (`pattern_rule.py`, `layout.py`); on a GPU `triton.py` all of them. Otherwise weights are
formed.
"""
