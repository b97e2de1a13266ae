"""The vocabulary of the field: values that travel or are kept, and a protocol for each kind of part."""
