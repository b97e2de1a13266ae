"""The federation: which client holds which samples with which labels; its card and figure."""
