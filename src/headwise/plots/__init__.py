"""Figures, drawn from tidy tables (one fact per row), independent of any model."""
