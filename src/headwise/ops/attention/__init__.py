"""Attention without weights in memory: context = map(q k' / sqrt(E)) v.

On a CPU `cpu.py` computes it, `cpu_few.py` for few queries (decoding), `cpu_sparse.py` for a sparse
pattern (`pattern_rule.py`, `layout.py`); on a GPU `triton.py` all of them. Otherwise `reference.py`
forms weights.
"""
