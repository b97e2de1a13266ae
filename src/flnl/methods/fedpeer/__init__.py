"""FedPeer: peer losses with a label distribution that clients share with label differential privacy."""
