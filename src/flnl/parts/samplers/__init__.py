"""Client samplers."""
