"""Benchmark of a round: our executors, a hand-written loop and other frameworks, in one run."""
