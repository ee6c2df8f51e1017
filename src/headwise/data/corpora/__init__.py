"""Readers of parallel text, one per format; each yields aligned sentence pairs.

`headwise.data.corpus` converts each split once; nothing else reads these formats.
"""
