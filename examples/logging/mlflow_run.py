"""Log every evaluation of a run to MLflow: `pip install mlflow`; MLFLOW_TRACKING_URI says where."""

import mlflow

import coterie as ct

federation = ct.load("digits", "classes", clients=5, classes=3)
method = ct.methods.Ditto(lr=0.1)


def log(evaluation):
    """Log the means over clients."""
    means = {name: value for name, value in evaluation.items() if isinstance(value, float)}
    mlflow.log_metrics(means, step=evaluation["round"])


with mlflow.start_run(run_name="ditto"):
    mlflow.log_params({"method": "ditto", "lr": method.lr})
    result = ct.run(federation, method=method, rounds=6, evaluate_every=2, on_evaluation=log)
    mlflow.log_metric("bytes_per_client", result.ledger.bytes_per_client())
