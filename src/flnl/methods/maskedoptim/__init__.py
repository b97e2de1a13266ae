"""MaskedOptim: only samples of small loss draw soft labels to the given ones; noisy clients move less."""
