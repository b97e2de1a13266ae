"""Aggregators: combine a cohort's models into one."""
