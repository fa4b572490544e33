"""Names of parameters, selection by name, and saved models."""

import resource

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from coterie.errors import CoterieError, StorageError
from coterie.models import naming
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp
from coterie.storage.durable import durable_write


def save(path, tree, metadata=None, run=None):
    durable_write(path, naming.encode(tree, metadata), run=run)


def metadata(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


class Head(eqx.Module):
    """One letter more than `fc1`, so that a prefix is not mistaken for a name."""

    fc1: eqx.nn.Linear
    fc10: eqx.nn.Linear
    parts: dict
    name: str = eqx.field(static=True, default="x")
    activation: object = jax.nn.relu


def head():
    keys = jax.random.split(jax.random.key(0), 2)
    parts = {"list": [jnp.zeros(2), {"scale": np.ones((1, 3))}]}
    return Head(eqx.nn.Linear(2, 3, key=keys[0]), eqx.nn.Linear(3, 1, use_bias=False, key=keys[1]), parts)


def test_names_are_dotted_paths_of_the_arrays_only():
    arrays = naming.names(head())
    assert [name for name, _ in arrays] == [
        "fc1.weight",
        "fc1.bias",
        "fc10.weight",
        "parts.list.0",
        "parts.list.1.scale",
    ]
    assert [leaf.shape for _, leaf in arrays] == [(3, 2), (3,), (1, 3), (2,), (1, 3)]


def test_names_of_shapes_are_those_of_the_model():
    spec = Mlp(hidden=(4,))
    shapes = naming.names(eqx.filter_eval_shape(spec.build, (3,), 2, jax.random.key(0)))
    assert [(name, leaf.shape) for name, leaf in shapes] == [
        ("layers.0.weight", (4, 3)),
        ("layers.0.bias", (4,)),
        ("layers.1.weight", (2, 4)),
        ("layers.1.bias", (2,)),
    ]


def test_two_parameters_of_one_name_are_refused():
    with pytest.raises(CoterieError, match=r"two parameters of the model are called 'a\.b'"):
        naming.names({"a.b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})


@pytest.mark.parametrize(
    ("prefixes", "chosen"),
    [
        ((), []),
        (("fc1",), ["fc1.weight", "fc1.bias"]),
        ("fc1.bias", ["fc1.bias"]),
        (["fc10", "parts.list.1"], ["fc10.weight", "parts.list.1.scale"]),
        (("parts", "parts.list.0"), ["parts.list.0", "parts.list.1.scale"]),
    ],
)
def test_select_marks_the_parameters_below_a_name(prefixes, chosen):
    model = head()
    marks = naming.select(model, prefixes)
    assert jax.tree.structure(marks) == jax.tree.structure(model)
    assert all(isinstance(mark, bool) for mark in jax.tree.leaves(marks))
    picked, rest = eqx.partition(model, marks)
    assert [name for name, _ in naming.names(picked)] == chosen
    assert len(naming.names(rest)) == 5 - len(chosen)
    assert eqx.tree_equal(eqx.combine(picked, rest), model)


@pytest.mark.parametrize(
    ("prefix", "guess"),
    [("fc2", "fc1"), ("fc1.weigth", "fc1.weight"), ("part", "parts"), ("fc1.", "fc1"), ("c1", "fc1")],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest_and_the_known(prefix, guess):
    with pytest.raises(CoterieError) as error:
        naming.select(head(), ["fc10", prefix])
    text = str(error.value)
    assert f"no parameter called {prefix!r}; did you mean {guess}" in text
    assert "known: fc1.weight, fc1.bias, fc10.weight, parts.list.0, parts.list.1.scale" in text


def test_the_empty_name_is_no_name():
    with pytest.raises(CoterieError, match="no parameter called ''"):
        naming.select(head(), "")


def test_a_saved_model_loads_bit_for_bit_with_its_metadata(tmp_path):
    file = tmp_path / "m.safetensors"
    model = Cnn().build((1, 8, 8), 3, jax.random.key(0))
    model = eqx.tree_at(lambda m: m.fc1.bias, model, model.fc1.bias.at[:2].set(jnp.array([-0.0, jnp.inf])))
    save(file, model, {"client": "Zoë"})
    back = naming.load(file, Cnn().build((1, 8, 8), 3, jax.random.key(1)))
    for (name, a), (_, b) in zip(naming.names(model), naming.names(back), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name
    assert metadata(file) == {"client": "Zoë"}
    assert naming.load(file, eqx.filter_eval_shape(lambda: model)).fc2.weight.shape == (3, 512)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_scalars_transposed_and_integer_arrays_keep_their_shape_and_values(tmp_path):
    tree = {"scalar": jnp.float32(2.5), "turned": np.arange(6.0).reshape(2, 3).T, "steps": jnp.arange(3)}
    save(tmp_path / "t", tree)
    stored = safetensors.numpy.load_file(tmp_path / "t")
    assert stored["scalar"].shape == ()
    assert stored["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert stored["steps"].tolist() == [0, 1, 2]
    assert metadata(tmp_path / "t") == {}


def test_a_file_written_elsewhere_loads_and_takes_the_models_precision(tmp_path):
    weights = {"layers.0.weight": np.arange(6.0).reshape(2, 3), "layers.0.bias": np.array([0.5, -1])}
    safetensors.numpy.save_file(weights, tmp_path / "torch.safetensors")
    model = naming.load(tmp_path / "torch.safetensors", Mlp(hidden=()).build((3,), 2, jax.random.key(0)))
    assert model.layers[0].weight.dtype == jnp.float32
    assert model(jnp.array([1.0, 10, 100])).tolist() == [210.5, 542]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers.0.weight": np.zeros((2, 4))}, r"'layers\.0\.weight' of shape \(2, 4\), but the model's is \(2, 3\)"),
        ({"layers.0.bias": None}, r"lacks 'layers\.0\.bias', which the model needs"),
        (
            {"layers.1.bias": np.zeros(2)},
            r"holds 'layers\.1\.bias', which the model does not have; did you mean layers\.0",
        ),
        ({"layers.0.bias": np.zeros(2, bool)}, None),
        ({"layers.0.bias": np.zeros(2, np.int32)}, None),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_a_sentence(tmp_path, change, sentence):
    weights = {"layers.0.weight": np.zeros((2, 3)), "layers.0.bias": np.zeros(2)} | change
    file = tmp_path / "m"
    safetensors.numpy.save_file({name: value for name, value in weights.items() if value is not None}, file)
    like = Mlp(hidden=()).build((3,), 2, jax.random.key(0))
    if sentence is None:  # whole numbers and booleans become floats without loss
        assert naming.load(file, like).layers[0].bias.tolist() == [0, 0]
        return
    with pytest.raises(CoterieError, match=sentence):
        naming.load(file, like)


def test_floats_do_not_become_integers(tmp_path):
    save(tmp_path / "m", {"steps": np.array([1.5])})
    with pytest.raises(CoterieError, match="holds 'steps' as float64; the model needs int32"):
        naming.load(tmp_path / "m", {"steps": jnp.array([1])})


@pytest.mark.parametrize("content", [None, b"", b"no model", b"\xff" * 100])
def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path, content):
    file = tmp_path / "m"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CoterieError, match="cannot be read as a saved model"):
        naming.load(file, {})


def test_a_full_disk_leaves_the_saved_model_intact_and_no_other_file(tmp_path):
    file = tmp_path / "m.safetensors"
    save(file, {"w": jnp.arange(10.0)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match="too large"):
            save(file, {"w": jnp.arange(1000.0)}, run=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert naming.load(file, {"w": jnp.zeros(10)})["w"].tolist() == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    with pytest.raises(CoterieError, match="cannot be written"):
        save(tmp_path / "absent" / "m", {"w": jnp.zeros(1)})
