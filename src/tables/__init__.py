"""The papers' tables, made again: ours beside theirs; ``python -m src.tables``."""
