"""Aggregators: one model from those of a cohort."""
