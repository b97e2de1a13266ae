"""What runs a method: the loop over rounds, the network, local training, executors."""
