"""The methods that are tried on a network."""

ROWS = [("gossip-sgd", {}), ("fedavg", {"participation": 0.6}), ("sgp", {"pushes": 2})]
