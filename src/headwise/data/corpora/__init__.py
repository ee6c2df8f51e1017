"""Where parallel text comes from: one reader a format, which yields aligned pairs.

What is read here is converted once (`headwise.data.corpus`); nothing else reads these formats.
"""
