"""Log every evaluation of a run to Weights & Biases: `pip install wandb`; WANDB_MODE=offline needs no account."""

import wandb

import coterie as ct

federation = ct.load("digits", "classes", clients=5, classes=3)
method = ct.methods.Ditto(lr=0.1)

with wandb.init(project="coterie", config={"method": "ditto", "lr": method.lr}) as run:

    def log(evaluation):
        """Log the means over clients, and every client's test score."""
        means = {name: value for name, value in evaluation.items() if isinstance(value, float)}
        run.log(
            means | {"clients/test_score": wandb.Histogram(evaluation["clients"]["test_score"])}, evaluation["round"]
        )

    result = ct.run(federation, method=method, rounds=6, evaluate_every=2, on_evaluation=log)
    run.summary["bytes_per_client"] = result.ledger.bytes_per_client()
