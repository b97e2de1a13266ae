"""Clients that are sites: each has its own samples, labels and states, and lets nothing out but what it allows."""
