"""flnl: federated learning with noisy labels, as methods that compose."""

__version__ = "0.2.0"
