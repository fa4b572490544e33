"""Known clusters (Lyu et al. 2022)."""
