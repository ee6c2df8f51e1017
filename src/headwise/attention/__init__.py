"""Attentions and their parts, a file per variant.

Read `place.py` (where a model attends), `normaliser.py` (from scores to weights) and `attention.py`
(one attention) in this order, then a variant, such as `alpha_entmax.py`.
"""
