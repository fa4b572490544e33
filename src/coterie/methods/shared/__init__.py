"""Base classes and functions that several methods use; each method is one file in the folder above."""
