"""FedReDA: small networks on a frozen backbone's features, taught by the mean of the other clients' (released 2025)."""
