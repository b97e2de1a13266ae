"""Methods whose parts exchange messages, one folder per paper. Only the configuration refers to them."""
