"""FedAvg through FedJAX: its `fed_avg`, clients by its jit backend, or by its pmap backend over virtual devices."""

import importlib.metadata
import os
import sys
from typing import Any

if "pmap" in sys.argv:  # before JAX starts: a virtual device for each core
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.cpu_count()}"

import jax

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree.map  # FedJAX 0.0.17 calls it by its old name

import fedjax
import jax.numpy as jnp
import numpy as np
import workload
from fedjax.algorithms import fed_avg
from jax import lax


def apply(weights: dict[str, Any], x: Any) -> Any:
    """Return the outputs of the MLP or the CNN for a batch."""
    if "conv1.weight" in weights:
        for name in ("conv1", "conv2"):
            x = lax.conv(x, weights[f"{name}.weight"], (1, 1), "VALID") + weights[f"{name}.bias"][:, None, None]
            batch, channels, height, width = x.shape
            # The gradient of a maximum over reshaped squares is faster than that of `reduce_window`.
            squares = x[:, :, : height // 2 * 2, : width // 2 * 2].reshape(
                batch, channels, height // 2, 2, width // 2, 2
            )
            x = jax.nn.relu(squares.max((3, 5)))
        x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ weights["fc1.weight"].T + weights["fc1.bias"])
    return x @ weights["fc2.weight"].T + weights["fc2.bias"]


def loss(weights: dict[str, Any], batch: dict[str, Any], key: Any) -> Any:
    """Return the mean loss of a batch."""
    rows = jax.nn.log_softmax(apply(weights, batch["x"]))
    return -jnp.take_along_axis(rows, batch["y"][:, None], 1).mean()


def main() -> None:
    backend = {"choices": ("jit", "pmap"), "default": "jit", "help": "FedJAX's way to go through clients"}
    args = workload.arguments(__doc__, backend=backend)
    jax.config.update("jax_platforms", "cuda" if args.device == "gpu" else "cpu")
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        with fedjax.for_each_client_backend(args.backend):
            algorithm = fed_avg.federated_averaging(
                jax.grad(loss),
                fedjax.optimizers.sgd(work.lr),
                fedjax.optimizers.sgd(1.0),
                fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
            )
            state = algorithm.init({name: jnp.asarray(value) for name, value in work.weights.items()})
            data = [
                fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(work.x, work.y.astype(np.int32), strict=True)
            ]
            key = jax.random.PRNGKey(0)
            clock.mark()
            for _ in range(work.blocks):
                for _ in range(work.block):
                    key, *own = jax.random.split(key, work.clients + 1)
                    clients = [(str(i).encode(), d, k) for i, (d, k) in enumerate(zip(data, own, strict=True))]
                    state, _ = algorithm.apply(state, clients)
                jax.block_until_ready(state.params)
                clock.mark()
        software = f"FedJAX {importlib.metadata.version('fedjax')}, JAX {jax.__version__}"
        workload.report(args, file, work, clock, state.params, software=software)


if __name__ == "__main__":
    main()
