"""Core types: messages and states of a federated run, and a protocol for each kind of part."""
