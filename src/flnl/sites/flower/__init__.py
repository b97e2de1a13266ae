"""What runs in Flower's own environment: it carries bytes, knows nothing of ``flnl``, and is never imported by it."""
