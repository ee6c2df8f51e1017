"""Readers of parallel text, one a format; each yields aligned sentence pairs.

`headwise.data.corpus` converts each split once; nothing else reads these formats.
"""
