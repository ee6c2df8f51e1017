"""Synthetic sequences of any length: trained short, scored long."""
