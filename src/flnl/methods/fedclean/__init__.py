"""FedClean: clients train alone first; labels that they infer, then the global model's, correct theirs (ICML 2025)."""
