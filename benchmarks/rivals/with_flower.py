"""FedAvg through Flower's simulation: its FedAvg strategy, and clients in Ray's actors."""

import os
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import flwr
import torch
import workload
from flower_client import client_of
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_network import network, numpy_weights


def main() -> None:
    args = workload.arguments(__doc__, actors={"type": int, "default": 1, "help": "how many clients train at a time"})
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        server, final = ServerApp(), {}

        def after_round(number: int, arrays: ArrayRecord, work: Any = work, clock: Any = clock) -> None:
            if number % work.block == 0:  # round 0 is the start
                clock.mark()

        @server.main()
        def run(
            grid: Grid, context: Context, work: Any = work, final: Any = final, after_round: Any = after_round
        ) -> None:
            every = work.clients
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=every, min_available_nodes=every)
            first, rounds = ArrayRecord(network(work).state_dict()), work.block * work.blocks
            result = strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds, evaluate_fn=after_round)
            final.update(numpy_weights(result.arrays.to_torch_state_dict()))

        cores = args.actors * args.threads
        config = {
            "init_args": {"num_cpus": cores, "include_dashboard": False, "logging_level": "warning"},
            "client_resources": {"num_cpus": args.threads, "num_gpus": 0.0},
        }
        run_simulation(server, client_of(os.path.abspath(file), args.threads), work.clients, backend_config=config)
        if not final:
            raise SystemExit("Flower's simulation ended without a model")
        software = f"Flower {flwr.__version__}, PyTorch {torch.__version__}"
        workload.report(args, file, work, clock, final, software=software)


if __name__ == "__main__":
    main()
