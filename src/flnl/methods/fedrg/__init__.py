"""FedRG: features learned without labels, whose clusters tell right labels from wrong ones (CVPR 2026)."""
