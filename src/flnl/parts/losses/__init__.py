"""Loss terms of the local objective."""
