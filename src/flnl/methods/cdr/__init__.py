"""CDR: only the critical weights follow the gradient of noisy labels (Xia et al. 2021)."""
