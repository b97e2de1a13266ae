"""Figures of one run's record, and curves of several runs."""
