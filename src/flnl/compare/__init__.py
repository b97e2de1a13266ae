"""Runs side by side: their numbers over seeds in a table, their curves in a figure; ``flnl compare``."""
