"""A page to inspect the heads of a run: one HTML file that works offline."""
