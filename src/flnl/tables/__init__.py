"""The papers' tables, made again: ours beside theirs; ``flnl tables``."""
