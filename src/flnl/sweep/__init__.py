"""Sweeps: many runs from one command, under any of Hydra's launchers, with a status for every job.

Hydra expands the command and launches the jobs. This package adds: all jobs are checked before the first starts, a
failed job does not affect others, a summary lists the outcome of every job, and a stop saves running jobs.
"""
