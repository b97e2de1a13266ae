"""A federated label audit: rank the labels of a run by how likely they are wrong, and show them."""
