"""The federation: who holds which samples with which labels; its card and figure."""
