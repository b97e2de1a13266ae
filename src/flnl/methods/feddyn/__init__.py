"""FedDyn (Acar et al. 2021): a dynamic regulariser on clients, and a matching correction of the server's model."""
