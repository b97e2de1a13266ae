"""``flnl doctor``: what this machine has, whether its GPU computes what the CPU computes, and how fast it trains."""
