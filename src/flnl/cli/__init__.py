"""The command line: check of overrides, errors in one line, help."""
