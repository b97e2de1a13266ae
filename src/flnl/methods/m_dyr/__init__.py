"""M-DYR: mixup with targets that are the more the network's own, the likelier a label is wrong (Arazo et al. 2019)."""
