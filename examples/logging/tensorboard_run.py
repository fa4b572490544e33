"""Log every evaluation of a comparison to TensorBoard: `pip install tensorboard`, then `tensorboard --logdir logs`."""

from tensorboard.summary import Writer

import coterie as ct

writers = {}


def log(evaluation):
    """Write the means over clients."""
    run = f"{evaluation['method']}-{evaluation['seed']}"
    writer = writers.setdefault(run, Writer(f"logs/{run}"))
    for name, value in evaluation.items():
        if isinstance(value, float):
            writer.add_scalar(name, value, evaluation["round"])
    writer.flush()


federation = ct.load("digits", "classes", clients=5, classes=3)
ct.compare(federation, ["local", "ditto"], rounds=6, tune=False, evaluate_every=2, on_evaluation=log)
