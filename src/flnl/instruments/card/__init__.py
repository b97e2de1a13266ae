"""The federation of a configuration, described without training."""
