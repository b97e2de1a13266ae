"""Data sets, images, partitions, label noise, and the federation built from them."""
