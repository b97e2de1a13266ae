"""FedDyn (Acar et al. 2021): clients' objectives and the server's model are corrected by all that was learned."""
