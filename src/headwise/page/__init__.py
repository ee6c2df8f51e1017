"""A page to inspect the heads of a run: one html file that needs no network."""
