"""No package: this file has ``python -m src.main`` find the door beside it, whatever ``src`` lies elsewhere."""
