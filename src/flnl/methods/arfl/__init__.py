"""ARFL: residual-based reweighting of clients (Fu et al. 2019)."""
