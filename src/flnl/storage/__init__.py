"""Files: written atomically, read back and verified."""
