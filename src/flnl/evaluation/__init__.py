"""Evaluation of models and methods against the true labels, which only this package reads."""
