"""Core types: messages and states of a federated run, and a base class for each kind of part."""
