"""Who may hear whom: graphs, named topologies, mixing weights, networks computed from data."""
