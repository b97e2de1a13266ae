"""FedStabilize: features are pulled to fixed prototypes, by which noisy clients choose and relabel their samples."""
