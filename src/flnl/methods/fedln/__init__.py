"""FedLN: clients whose energies jump count less (NA-FedAvg), or take over the labels of their neighbours (NNC)."""
