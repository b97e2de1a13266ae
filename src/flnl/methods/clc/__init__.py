"""CLC: clients hold out samples that a consensus of all clients contradicts, and later correct them (Zeng et al.)."""
