"""FedRN (Kim et al. 2022): clients choose clean samples together with models of reliable neighbours."""
