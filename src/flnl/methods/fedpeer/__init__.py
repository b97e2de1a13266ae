"""FedPeer: peer losses against a label distribution that clients share in private."""
