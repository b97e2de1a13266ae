"""FOCUS: clients count by their credibility, from losses of both sides on each other's data (Chen et al. 2020)."""
