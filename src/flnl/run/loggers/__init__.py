"""Loggers that ``logger`` can name."""
