"""Logging of a run: files in its folder (the record), and trackers that mirror them."""
