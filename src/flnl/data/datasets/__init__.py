"""Data sets, a module a source."""
