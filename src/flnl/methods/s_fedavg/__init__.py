"""S-FedAvg: clients are selected by their Shapley values on clean samples (Nagalapatti and Narayanam, AAAI 2021)."""
