"""A run starts from the weights of a file, and its models open again where that file is gone."""

import jax
import numpy as np
import pytest
import safetensors.numpy

import coterie as ct
from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.methods import FedAvg
from coterie.testing.small import small_federation


def test_a_run_starts_from_given_weights(tmp_path, device):
    """A state dict as PyTorch saves it; with lr near 0 the models stay what they were."""
    random = np.random.default_rng(0)
    weights = {"weight": random.normal(size=(3, 6)).astype(np.float32), "bias": np.ones(3, np.float32)}
    file = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file(weights, file)
    federation = small_federation(3)
    settings = {"rounds": 1, "device": device, "progress": False}
    result = ct.run(federation, "linear", FedAvg(lr=1e-12), init=file, out=tmp_path / "run", **settings)
    params = result.model(1).variables.params
    np.testing.assert_allclose(params.weight, weights["weight"], rtol=1e-5)
    np.testing.assert_allclose(params.bias, weights["bias"], rtol=1e-5)
    file.unlink()
    again = Result.read(tmp_path / "run").model(1)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.variables.params, params))


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    file = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file({"weight": np.zeros((3, 6), np.float32), "bais": np.zeros(3, np.float32)}, file)
    with pytest.raises(CoterieError, match=r"holds 'bais', which the model does not have; did you mean bias\?"):
        ct.run(small_federation(2), "linear", init=file)
    safetensors.numpy.save_file({"weight": np.zeros((4, 6), np.float32), "bias": np.zeros(3, np.float32)}, file)
    with pytest.raises(CoterieError, match=r"holds 'weight' of shape \(4, 6\), but the model's is \(3, 6\)"):
        ct.run(small_federation(2), "linear", init=file)
