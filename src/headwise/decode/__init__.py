"""Beam search, translation of text, and scoring of given translations."""
