"""Figures: what a run's record shows, and the curves of several runs."""
