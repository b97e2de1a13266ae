"""Data sets, one module per source."""
