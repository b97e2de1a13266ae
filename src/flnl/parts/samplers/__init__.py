"""Samplers of clients."""
