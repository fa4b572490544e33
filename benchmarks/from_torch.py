"""Compare `coterie.models.from_torch` with PyTorch itself: `pip install torch`, then `python benchmarks/from_torch.py`.

Prints the largest difference of the outputs of some Sequentials, in evaluation mode, on random samples.
"""

import equinox as eqx
import jax
import numpy as np
import torch
from torch import nn

from coterie.models import from_torch


class LastStep(nn.Module):
    """The outputs of an LSTM at the last step."""

    def forward(self, returned):
        """Return them."""
        outputs, _ = returned
        return outputs[:, -1, :]


class LastHidden(nn.Module):
    """The same, as many write it."""

    def forward(self, returned):
        """Return what the last layer holds at the end."""
        return returned[1][0][-1]


class AllSteps(nn.Module):
    """The outputs of an LSTM at every step."""

    def forward(self, returned):
        """Return them."""
        return returned[0]


CASES = {
    "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(48, 20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 5)), (3, 4, 4)),
    "cnn": (
        nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, stride=2, ceil_mode=True)
            ),
            nn.Conv2d(8, 6, 3, stride=2, padding="valid", bias=False),
            nn.GroupNorm(3, 6),
            nn.LeakyReLU(0.2),
            nn.AvgPool2d(3, padding=1, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 4),
        ),
        (3, 16, 16),
    ),
    "grouped": (
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, dilation=2, padding="same"), nn.ELU(0.5), nn.Tanh(), nn.SiLU()),
        (4, 9, 9),
    ),
    "words": (nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Sigmoid(), nn.Flatten(), nn.Linear(30, 3)), (5,)),
    "words, lstm": (
        nn.Sequential(nn.Embedding(11, 6), nn.LSTM(6, 8, batch_first=True), LastStep(), nn.Linear(8, 3)),
        (5,),
    ),
    "words, 3 layers": (
        nn.Sequential(
            nn.Embedding(11, 6),
            nn.LSTM(6, 8, num_layers=3, dropout=0.4, batch_first=True),
            LastHidden(),
            nn.Linear(8, 3),
        ),
        (9,),
    ),
    "both ways": (
        nn.Sequential(
            nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True),
            AllSteps(),
            nn.LayerNorm(16),
            nn.LSTM(16, 5, bias=False, batch_first=True),
            LastStep(),
            nn.Linear(5, 2),
        ),
        (7, 4),
    ),
}


def main() -> None:
    """Print one line per case."""
    torch.manual_seed(0)
    for name, (module, shape) in CASES.items():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
                nn.init.normal_(layer.weight)
        module.eval()
        words = name.startswith("words")
        x = torch.randint(0, 11, (7, *shape)) if words else torch.randn(7, *shape)
        expected = module(x).detach().numpy()
        made = from_torch(module)
        ours, state = made if isinstance(made, tuple) else (made, None)
        ours = eqx.nn.inference_mode(ours)
        run = ours if state is None else lambda x, ours=ours, state=state: ours(x, state)[0]
        got = jax.vmap(run, axis_name="batch")(x.numpy())
        print(f"{name}: shape {got.shape}, largest difference {np.abs(np.asarray(got) - expected).max():.2g}")


if __name__ == "__main__":
    main()
