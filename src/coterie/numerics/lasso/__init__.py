"""The network lasso: models tied along the edges of a graph."""
