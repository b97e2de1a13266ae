"""``flnl tables``: reproduce the papers' tables and compare our numbers with the papers'."""
