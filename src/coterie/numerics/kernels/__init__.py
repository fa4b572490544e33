"""Loops that JAX cannot express well, compiled by Numba and called from inside a program."""
