"""Parts for flnl, one of each kind; conf/ gives them their names and values."""
