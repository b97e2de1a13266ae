"""FedES: estimates clients' label quality, selects and weights clients by it, and decays updates of noisy clients."""
