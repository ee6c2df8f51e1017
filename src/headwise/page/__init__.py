"""The page on which the heads of a run are inspected: one html file that needs no network."""
