"""FedELC: on noisy clients, the network and the soft labels of its samples learn from one another."""
