"""Parameters by name: the dotted path of each array, as PyTorch's `state_dict` spells it.

Names select the personal parts of a model, and are the keys of the safetensors files that models are saved in, so that
models can be exchanged with PyTorch.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from coterie.errors import CoterieError
from coterie.spec import nearest
from coterie.storage.arrays import read_tensors

__all__ = ["encode", "layers_of", "load", "names", "select"]

Tree = TypeVar("Tree")


def names(tree: Any) -> list[tuple[str, Any]]:
    """List the arrays of a model (or their shapes, from `eqx.filter_eval_shape`) as `("conv1.weight", array)`."""
    arrays = [(name, leaf) for name, leaf in _leaves(tree) if _is_array(leaf)]
    seen: set[str] = set()
    for name, _ in arrays:
        if name in seen:
            raise CoterieError(f"two parameters of the model are called {name!r}; rename one of them")
        seen.add(name)
    return arrays


def select(tree: Tree, prefixes: str | Iterable[str]) -> Tree:
    """Return a tree of the same structure that is True at the parameters whose name is a prefix or lies below one.

    Args:
        tree: a model, or its parameters.
        prefixes: names such as `fc2` (both its weight and its bias) or `fc2.weight`.
    """
    wanted = [prefixes] if isinstance(prefixes, str) else list(prefixes)
    known = [name for name, _ in names(tree)]
    for prefix in wanted:
        if not any(_below(name, prefix) for name in known):
            guess = nearest(prefix, [*known, *_parents(known)])
            raise CoterieError(f"the model has no parameter called {prefix!r}{guess} (known: {', '.join(known)})")
    chosen = [_is_array(leaf) and any(_below(name, prefix) for prefix in wanted) for name, leaf in _leaves(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), chosen)


def layers_of(tree: Any, kinds: tuple[type, ...]) -> list[str]:
    """List the names of a model's layers of some types, such as `("norm1", "norm2")`."""
    nodes = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, kinds))[0]
    return [".".join(map(_step, path)) for path, node in nodes if isinstance(node, kinds)]


def encode(tree: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of the safetensors file of a model, which depend on nothing but the model and the metadata."""
    arrays = {name: np.array(leaf, order="C") for name, leaf in names(tree)}
    data = safetensors.numpy.save(arrays, dict(metadata or {}))
    body = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:body])
    header["__metadata__"] = dict(sorted((metadata or {}).items()))  # safetensors writes it in random order
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns its data
    return len(text).to_bytes(8, "little") + text + data[body:]


def load(path: str | Path, like: Tree) -> Tree:
    """Return `like` with its arrays read from a safetensors file: ours, or a PyTorch `state_dict` with these names."""
    stored = read_tensors(Path(path).parent, Path(path).name)
    expected = names(like)
    known = [name for name, _ in expected]
    for name in stored:
        if name not in known:
            raise CoterieError(f"{path} holds {name!r}, which the model does not have{nearest(name, known)}")
    for name, leaf in expected:
        if name not in stored:
            raise CoterieError(f"{path} lacks {name!r}, which the model needs{nearest(name, stored)}")
        if stored[name].shape != tuple(leaf.shape):
            raise CoterieError(
                f"{path} holds {name!r} of shape {stored[name].shape}, but the model's is {tuple(leaf.shape)}"
            )
        if not np.can_cast(stored[name].dtype, leaf.dtype, "same_kind"):
            raise CoterieError(f"{path} holds {name!r} as {stored[name].dtype}; the model needs {leaf.dtype}")
    leaves = [jnp.asarray(stored[name], leaf.dtype) if _is_array(leaf) else leaf for name, leaf in _leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(".".join(map(_step, path)), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _step(entry: Any) -> str:
    """Return one step of a path: a field's name, a dictionary's key, or an index."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _parents(known: list[str]) -> list[str]:
    parts = [name.split(".") for name in known]
    return list(dict.fromkeys(".".join(part[:depth]) for part in parts for depth in range(1, len(part))))
