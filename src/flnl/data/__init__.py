"""Data sets, images, partitions, label noise and the federation that is drawn from them."""
