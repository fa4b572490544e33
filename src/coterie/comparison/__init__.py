"""Several runs of the same clients, side by side."""
