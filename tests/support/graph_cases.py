"""Weights and bounds that only tests need."""


def row_weights(graph):
    """The plain average with oneself: 1 / (1 + degree) for each present slot, the rest one's own; `[K, D]`."""
    return graph.present / (1.0 + graph.degree)[:, None]


def step_size_bound(lambda_min, smoothness=1.0):
    """A primal-dual method's learning rate must stay below (1 + 3 lambda_min) / (2 smoothness)."""
    return max(0.0, (1.0 + 3.0 * lambda_min) / (2.0 * smoothness))
