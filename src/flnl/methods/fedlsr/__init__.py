"""FedLSR (Jiang et al. 2022): two views of each image are classified together and must agree."""
