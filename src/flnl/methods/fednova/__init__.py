"""FedNova: each client's change is divided by how far its steps could take it (Wang et al. 2020)."""
