"""Sweeps: many runs from one command, under any of Hydra's launchers, with an account of every job.

Hydra expands the command and launches; what it does not do is here: checking all jobs before the first starts, a failed
job that costs no other, an end that tells what became of each, and a stop that saves what runs.
"""
