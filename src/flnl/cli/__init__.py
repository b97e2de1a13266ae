"""The command line: the check of its words, its errors in one line, its help."""
