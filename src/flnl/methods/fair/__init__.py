"""FAIR: clients are selected and weighted by the quality of their training (Deng et al., INFOCOM 2021)."""
