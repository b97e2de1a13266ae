"""What can be done from Python: train, read what runs have left, use their models."""
