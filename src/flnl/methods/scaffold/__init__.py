"""SCAFFOLD (Karimireddy et al. 2020): control variates correct each client's gradients for what only it would do."""
