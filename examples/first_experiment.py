"""A first experiment from Python: divide data, train personal models, look at them.

python examples/first_experiment.py [ROUNDS]
"""

import sys

import numpy as np

import coterie as ct

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30

# Handwritten digits, divided among 20 clients with 3 classes each. For your own data, one pair of arrays per client:
# federation = ct.federation({"north": (x_north, y_north), "south": (x_south, y_south)})
federation = ct.load("digits", "classes", clients=20, classes=3)

# One method: metrics as a DataFrame, a personal model, the weights of the cooperation graph, the bytes sent.
result = ct.run(federation, model="mlp", method=ct.methods.GossipSGD(lr=0.1), graph="ring", rounds=rounds)
print(result.metrics.groupby("round")["test_score"].describe()[["mean", "std", "min"]].tail(3))
x, y = federation.test.rows(3)
logits = result.model("client-3")(x)
print("client-3 predicts", np.argmax(logits, 1)[:5], "for", y[:5])
print("client-0 listens to", sorted(result.graph().pred["client-0"]))
print(
    f"{result.ledger.bytes_per_client():,.0f} bytes per client;", len(result.save_models("models")), "models in models/"
)

# Several methods: would cooperation help these clients?
comparison = ct.compare(federation, ["local", "fedavg", ct.methods.Ditto(tie=0.5)], rounds=rounds)
for row in comparison.leaderboard():
    print(f"{row['method']:8} {row['mean']:.3f}")
print(comparison.verdict())
