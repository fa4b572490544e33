"""Sweeps: one experiment with many settings, as few programs as possible, and the best by validation samples."""
