"""CORES²: a confidence regulariser, and a sieve for labels that it makes implausible (Cheng et al. 2021)."""
