"""Search (beam, greedy), translation of text, and scoring of given translations."""
