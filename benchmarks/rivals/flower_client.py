"""The client of Flower's simulation; a module of its own, since Ray's actors import it."""

import functools
from typing import Any

import torch
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_network import local_training, network

__all__ = ["client_of"]


@functools.cache
def _loaded(file: str, threads: int) -> tuple[workload.Workload, Any, Any, Any]:
    """Return what an actor keeps from client to client: the workload, its tensors and a model."""
    torch.set_num_threads(threads)
    work = workload.read(file)
    return work, torch.from_numpy(work.x), torch.from_numpy(work.y), network(work)


def client_of(file: str, threads: int) -> ClientApp:
    """Return the program of a client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, x, y, model = _loaded(file, threads)
        client = int(context.node_config["partition-id"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        local_training(model, x[client], y[client], work)
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
        return Message(content=RecordDict(content), reply_to=message)

    return app
