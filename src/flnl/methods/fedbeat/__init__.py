"""FedBeat: an ensemble labels samples, from which a network learns how each sample's label goes wrong (ICASSP 2024)."""
