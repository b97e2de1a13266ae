"""FedGR: labels are refined by one mixture of all clients' losses, and by a teacher of each client (ICML 2026)."""
