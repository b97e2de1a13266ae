"""Local training of one client."""
