"""``flnl tune``: hyperparameters chosen on seeds or samples that are kept out of the results."""
