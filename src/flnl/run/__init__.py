"""Runs one experiment: folder, session, checkpoints, record, progress, signals, W&B."""
