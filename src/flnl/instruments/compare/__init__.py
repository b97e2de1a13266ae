"""``flnl compare``: compare runs in a table of metrics over seeds, and a figure of their curves."""
