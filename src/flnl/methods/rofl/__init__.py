"""RoFL, also RobustFL (Yang et al. 2022): class-wise feature centroids that clients and server agree on."""
