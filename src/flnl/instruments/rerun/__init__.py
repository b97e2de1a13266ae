"""Repeats a finished run from its folder, and says whether the bits agree."""
