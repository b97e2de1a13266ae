"""Parts of one idea each that any method may use."""
