"""FedDiv (Li et al. 2024): a federated filter of noisy labels, and batches reselected by consistency."""
