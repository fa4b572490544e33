"""A model as a list of layers, which a NumPy file and an ONNX file can be written from: linear, mlp and cnn.

Each layer is a dictionary: `op` is flatten, linear, relu, sigmoid, tanh, conv, pool (maximum of 2x2) or affine (a
linear map of the last axis), `name` begins the names of its parameters. An ensemble has several such lists.
"""

from typing import Any

import numpy as np

from coterie.errors import CoterieError

__all__ = ["Layer", "members_of"]

Layer = dict[str, Any]


def members_of(task: Any, variables: Any, model: str) -> tuple[list[list[Layer]], list[float]]:
    """Return the layers of each member of a client's model, and the members' weights; a lone model is one member.

    Args:
        task: what the client learned.
        variables: its model.
        model: the model's name, for the message.
    """
    from coterie.models.ensemble import Ensemble

    module = task.module(variables)
    if not isinstance(module, Ensemble):
        return [_layers(module, "", model)], [1.0]
    lists = [_layers(member, f"members.{k}.", model) for k, member in enumerate(module.members)]
    logits = np.zeros(len(lists)) if module.mixture is None else np.asarray(module.mixture, np.float64)
    odds = np.exp(logits - logits.max())
    return lists, (odds / odds.sum()).tolist()


def _layers(module: Any, prefix: str, model: str) -> list[Layer]:
    from coterie.models.affine import AffineInput
    from coterie.models.cnn import CnnNetwork
    from coterie.models.linear import LinearNetwork
    from coterie.models.mlp import MlpNetwork

    if isinstance(module, AffineInput):
        return [{"op": "affine", "name": f"{prefix}input."}, *_layers(module.model, f"{prefix}model.", model)]
    if isinstance(module, LinearNetwork):
        return [{"op": "flatten"}, {"op": "linear", "name": prefix}]
    if isinstance(module, MlpNetwork):
        layers: list[Layer] = [{"op": "flatten"}]
        for k in range(len(module.layers)):
            layers += [{"op": module.activation}] if k else []
            layers.append({"op": "linear", "name": f"{prefix}layers.{k}."})
        return layers
    if isinstance(module, CnnNetwork):
        layers = []
        for name, convolution in (("conv1", module.conv1), ("conv2", module.conv2)):
            pad = convolution.weight.shape[2] // 2 if convolution.padding == "same" else 0
            layers += [{"op": "conv", "name": f"{prefix}{name}.", "pad": pad}, {"op": "pool"}, {"op": "relu"}]
        ends: list[Layer] = [{"op": "linear", "name": f"{prefix}fc1."}, {"op": "relu"}]
        return [*layers, {"op": "flatten"}, *ends, {"op": "linear", "name": f"{prefix}fc2."}]
    raise CoterieError(
        f"predict.py and model.onnx are written for linear, mlp and cnn, not for {model}; model.safetensors has its "
        "parameters by their PyTorch names, and coterie.open predicts with it"
    )
