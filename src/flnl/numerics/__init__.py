"""Numerical functions that several methods share."""
