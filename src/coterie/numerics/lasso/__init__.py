"""The network lasso: personal models that are tied along the edges of a graph."""
