"""Who may hear whom: graphs, topologies, mixing weights, networks measured from data."""
