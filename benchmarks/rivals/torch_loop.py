"""FedAvg as a plain PyTorch loop over clients."""

import torch
import workload
from torch_network import local_training, network, numpy_weights


def main() -> None:
    part = {"type": int, "default": 0, "help": "train only so many clients; times are of all, in proportion"}
    args = workload.arguments(__doc__, part=part)
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX does
    place = "cuda" if args.device == "gpu" else "cpu"
    for file in args.workloads:
        work, clock = workload.read(file, args.block), workload.Clock()
        trained = min(args.part or work.clients, work.clients)
        model, x, y = network(work, place), torch.from_numpy(work.x).to(place), torch.from_numpy(work.y).to(place)
        shared = {name: value.clone() for name, value in model.state_dict().items()}
        clock.mark()
        for _ in range(work.blocks):
            for _ in range(work.block):
                total = {name: torch.zeros_like(value) for name, value in shared.items()}
                for client in range(trained):
                    model.load_state_dict(shared)
                    local_training(model, x[client], y[client], work)
                    for name, value in model.state_dict().items():
                        total[name] += value
                shared = {name: value / trained for name, value in total.items()}
            if place == "cuda":
                torch.cuda.synchronize()
            clock.mark()
        workload.report(
            args,
            file,
            work,
            clock,
            numpy_weights(shared),
            share=trained / work.clients,
            software=f"PyTorch {torch.__version__}",
        )


if __name__ == "__main__":
    main()
