"""One run, from its folder to its record."""
