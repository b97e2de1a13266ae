"""FedNoRo: clients with large class losses learn from the global model and count less in the mean."""
