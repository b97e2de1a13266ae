"""FedSIR: directions of classes' features tell clean clients, whose directions relabel the others (2026)."""
