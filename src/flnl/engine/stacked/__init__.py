"""Local training of many clients as one network."""
