"""Run PFLlib's own main.py as it is: `python pfllib_program.py PFLlib/system -data MNIST -algo FedAvg ...`.

main.py imports every algorithm and model, and with them packages that this comparison does not need. Those that are
not installed become empty modules; of scikit-learn and h5py, which every run uses, what it does with them: the area
under the curve is then NaN, and the file of results is not written (its figures are read from what it prints).
`python pfllib_program.py PFLlib/system --start FILE.npz` writes the weights that every run of it starts from.
"""

import importlib
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

UNUSED = ("torchvision", "cvxpy", "calmsize", "matplotlib", "matplotlib.pyplot")


class Nothing:
    """A file that keeps nothing."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def create_dataset(self, *given: Any, **named: Any) -> None:
        """Drop the data."""


def module(name: str, **contents: Any) -> None:
    """Put a module in the place of one that cannot be imported, and print that."""
    parent, _, own = name.rpartition(".")
    if parent not in replaced:
        try:
            importlib.import_module(name)
            return
        except Exception as error:  # whatever a damaged installation raises
            print(f"{name} cannot be imported ({error}): an empty one takes its place", flush=True)
    replaced.add(name)
    sys.modules[name] = made = types.ModuleType(name)
    made.__dict__.update(contents)
    if parent:
        setattr(sys.modules[parent], own, made)


def write_start(file: Path) -> None:
    """Write the weights that its runs start from: main.py seeds PyTorch with 0 and makes the model."""
    import torch
    from flcore.trainmodel.models import FedAvgCNN

    torch.manual_seed(0)
    model = FedAvgCNN(in_features=1, num_classes=10, dim=1024)
    np.savez(file, **{name: value.numpy() for name, value in model.state_dict().items()})


replaced: set[str] = set()

if __name__ == "__main__":
    for name in UNUSED:
        module(name, size=lambda number: number)
    module("h5py", File=Nothing)
    module("sklearn")
    module("sklearn.metrics", roc_auc_score=lambda *given, **named: float("nan"))
    module("sklearn.preprocessing", label_binarize=lambda y, classes: np.zeros((len(y), len(classes))))
    system = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(system))
    if sys.argv[2] == "--start":
        write_start(Path(sys.argv[3]))
    else:
        sys.argv = [str(system / "main.py"), *sys.argv[2:]]
        runpy.run_path(str(system / "main.py"), run_name="__main__")
