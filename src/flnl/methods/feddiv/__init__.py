"""FedDiv (Li et al. 2024): a federated filter for noisy labels, and reselection of samples by consistency."""
