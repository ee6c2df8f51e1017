"""Readers of parallel text, one per format; each yields aligned sentence pairs.

`headwise.tasks.translation.corpus` converts each split once; nothing else reads these formats.
"""
