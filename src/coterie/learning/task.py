"""What one client learns: a model, its loss and its score, written for a single client.

The engine batches these functions over clients; nothing here knows that there are others. The model contract is
`apply(variables, x, key, train) -> (output, statistics)`: `params` are trained and may be sent, `statistics`
(batch norm and the like) belong to the client and are never sent.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import jaxpr_as_fun

from coterie.data.clients import Federation, Kind
from coterie.errors import CoterieError
from coterie.learning.score import Score, score_of
from coterie.models.augment import Augment, take
from coterie.models.constant import ConstantNetwork
from coterie.models.convert import replace_convolutions
from coterie.models.ensemble import ensemble_of
from coterie.models.linear import Linear
from coterie.models.naming import layers_of, names, select
from coterie.models.precision import in_bfloat16, like

__all__ = ["Task", "Variables"]


class Variables(NamedTuple):
    """A model's arrays: the trained parameters, and the statistics that stay with the client."""

    params: Any
    statistics: Any = ()


class Task:
    """Model, loss and score of one client.

    Args:
        module: an Equinox module, the pair `eqx.nn.make_with_state` returns, or a function `key -> module`.
        kind: "classification", "regression" or "next-character".
        personal: names (or prefixes of names) of parameters that stay with the client, as `coterie show MODEL`
            prints them.
        mean, std: normalisation of images that are stored as bytes, per channel.
        augment: random crop and flip of training images.
        dtype: floating type of parameters and inputs.
        equal_sizes: whether every client has the same number of training samples, so that an epoch has a known length.
        members: models per client; their predictions are averaged.
        mixture: whether the members' weights are parameters (`mixture`) instead of equal.
        metric: the name of the score (`coterie.learning.score`); default: accuracy, or rmse for a regression.
        bfloat16: whether a model that trains computes in bfloat16; parameters, losses, gradients and evaluation are of
            `dtype` all the same.
    """

    def __init__(
        self,
        module: Any,
        kind: Kind,
        *,
        personal: tuple[str, ...] = (),
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        augment: Augment | None = None,
        dtype: Any = jnp.float32,
        equal_sizes: bool = False,
        members: int = 1,
        mixture: bool = False,
        metric: str | None = None,
        bfloat16: bool = False,
    ):
        self._made_of: dict[str, Any] = {"mean": mean, "std": std, "augment": augment, "dtype": dtype}
        self._made_of |= {"equal_sizes": equal_sizes, "members": members, "metric": metric, "bfloat16": bfloat16}
        is_instance = isinstance(module, eqx.Module | tuple)
        if is_instance and members > 1:
            raise CoterieError("members: give a function of a key or a configured model, so that each can be drawn")
        self._alone: Callable[[jax.Array], Any] = (lambda key: module) if is_instance else module
        self._build, self.members = self._alone, members
        if members > 1 or mixture:
            self._build = ensemble_of(self._alone, members, mixture, kind != "regression")
        self.kind: Kind = kind
        self.score: Score = score_of(kind, metric)
        self.augment = augment
        self.equal_sizes = equal_sizes
        self._mean, self._std, self.dtype, self.bfloat16 = np.asarray(mean), np.asarray(std), dtype, bfloat16
        params, self._static, statistics = self._outline()
        self._stateful = bool(jax.tree.leaves(statistics))
        accepted = inspect.signature(type(eqx.combine(params, self._static)).__call__).parameters
        self._takes_key = "key" in accepted
        self.names = [name for name, _ in names(params)]
        self.size = sum(leaf.size for leaf in jax.tree.leaves(params))
        # Dense layers have matrices; a kernel of more dimensions or a loop over time runs better client by client.
        self.dense = kind != "next-character" and all(leaf.ndim <= 2 for leaf in jax.tree.leaves(params))
        self._shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
        self.outputs = 0  # number of classes or characters, known once the task has a federation
        self.sample_shape: tuple[int, ...] = ()  # likewise
        self._view: Callable[[Any], Any] | None = None
        self._keep(personal)

    @functools.cached_property
    def forward(self) -> Callable[[Variables, jax.Array], jax.Array]:
        """A model's outputs for a batch, compiled once for each shape."""
        return jax.jit(lambda variables, x: self.apply(variables, x)[0])

    @classmethod
    def of(cls, federation: Federation, model: Any, **options: Any) -> "Task":
        """Make the task of a federation: `model` is a model spec, an Equinox module or a function `key -> module`."""
        build = model
        if hasattr(model, "build"):
            shape, outputs = federation.sample_shape, federation.classes
            build = lambda key: model.build(shape, outputs, key)  # noqa: E731
        options = {"mean": federation.mean, "std": federation.std} | options
        options["equal_sizes"] = federation.equal_sizes
        task = cls(build, federation.kind, **options)
        task._check_shapes(federation)
        task.outputs, task.sample_shape = federation.classes, federation.sample_shape
        return task

    def linear(self) -> "Task":
        """Return the task of one linear layer on the same inputs, without personal parts."""
        shape, outputs = self.sample_shape, self.outputs
        options = self._made_of | {"members": 1, "augment": None}
        task = Task(lambda key: Linear().build(shape, outputs, key), self.kind, **options)
        task.outputs, task.sample_shape = outputs, shape
        return task

    def constant(self) -> "Task":
        """Return the task of a model whose output does not depend on the input, without personal parts."""
        bias, text = jnp.zeros(self.outputs), self.kind == "next-character"
        task = Task(ConstantNetwork(bias, text), self.kind, **(self._made_of | {"members": 1, "augment": None}))
        task.outputs, task.sample_shape = self.outputs, self.sample_shape
        return task

    def mixed(self, members: int) -> "Task":
        """Return the task of an ensemble of such models whose weights, `mixture`, are parameters and stay personal."""
        if self.personal:
            raise CoterieError(
                f"personal: {', '.join(self.personal)} cannot be personal as well as an ensemble's weights; leave "
                "model.personal empty"
            )
        options = self._made_of | {"members": members if self.members == 1 else self.members}
        task = Task(self._alone, self.kind, personal=("mixture",), mixture=True, **options)
        task.outputs, task.sample_shape = self.outputs, self.sample_shape
        return task

    def wrapped(self, wrap: Callable[[Any], Any], personal: tuple[str, ...]) -> "Task":
        """Return the task of the model that `wrap(module)` makes of such a model, with its own personal parts."""
        if self.members > 1:
            raise CoterieError("members: this method cannot train an ensemble; set model.members = 1")

        def build(key: jax.Array) -> Any:
            built = self._alone(key)
            return (wrap(built[0]), built[1]) if isinstance(built, tuple) else wrap(built)

        task = Task(build, self.kind, personal=personal, **self._made_of)
        task.outputs, task.sample_shape = self.outputs, self.sample_shape
        return task

    def viewed(self, view: Callable[[Any], Any]) -> "Task":
        """Return the task of the same parameters whose module is `view(module)`: it may return other outputs."""
        other = copy.copy(self)
        other.__dict__.pop("forward", None)
        other._view = view
        return other

    def layers_of(self, kinds: tuple[type, ...]) -> list[str]:
        """Return the names of the model's layers of these types."""
        return layers_of(eqx.combine(self._shapes, self._static), kinds)

    def _split(self, built: Any) -> tuple[Any, Any, Any]:
        module, statistics = built if isinstance(built, tuple) else (built, ())
        module = replace_convolutions(module)
        params, static = eqx.partition(module, eqx.is_inexact_array)
        return jax.tree.map(lambda a: a.astype(self.dtype), params), static, statistics

    def _outline(self) -> tuple[Any, Any, Any]:
        """Return parameters, static part and statistics of a model, with shapes in place of the numbers.

        Numbers that nobody needs would be drawn array by array, with a program compiled for each shape.
        """
        outline = eqx.filter_eval_shape(lambda: self._split(self._build(jax.random.key(0))))
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(outline[1])):
            return self._split(self._build(jax.random.key(0)))  # arrays that are no parameters must have their values
        return outline

    def _check_shapes(self, federation: Federation) -> None:
        """Trace the model on one sample, to refuse a model that does not fit before anything is compiled."""
        x = jnp.asarray(np.zeros((1, *federation.sample_shape), federation.dtype))  # of a type JAX has
        expected: tuple[int, ...] = (1, federation.classes)
        if self.kind == "next-character":
            expected = (1, federation.sample_shape[0], federation.classes)
        try:
            output = jax.eval_shape(lambda: self.apply(self.init(jax.random.key(0)), x)[0])
        except CoterieError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CoterieError(f"model does not accept inputs of shape {federation.sample_shape}: {reason}") from error
        if output.shape != expected:
            raise CoterieError(f"model returns {output.shape[1:]} for a sample but the data need {expected[1:]}")

    def _keep(self, personal: tuple[str, ...]) -> None:
        self.personal, self._is_personal = personal, select(self._shapes, personal)

    @property
    def personal_names(self) -> list[str]:
        """The names of the parameters that stay with the client."""
        marks = jax.tree.leaves(self._is_personal)
        return [name for name, stays in zip(self.names, marks, strict=True) if stays]

    def keeping(self, personal: tuple[str, ...]) -> "Task":
        """Return the same task with other personal parts; names that the model does not have are refused."""
        other = copy.copy(self)
        other._keep(personal)
        return other

    def init(self, key: jax.Array) -> Variables:
        """Draw a fresh model."""
        params, _, statistics = self._split(self._build(key))
        return Variables(params, statistics)

    def module(self, variables: Variables, train: bool = False) -> Any:
        """Return the Equinox module with these arrays in it."""
        module = eqx.combine(variables.params, self._static)
        return eqx.nn.inference_mode(module if self._view is None else self._view(module), value=not train)

    def prepare(self, x: jax.Array) -> jax.Array:
        """Turn stored samples into inputs of the model: bytes become normalised floats, floats keep their values."""
        if x.dtype == jnp.uint8:
            shape = (-1,) + (1,) * (x.ndim - 2) if x.ndim > 2 else (-1,)
            mean, std = (jnp.asarray(v, self.dtype).reshape(shape) for v in (self._mean, self._std))
            return (x.astype(self.dtype) / 255 - mean) / std
        return x.astype(self.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def apply(
        self, variables: Variables, x: jax.Array, key: jax.Array | None = None, train: bool = False
    ) -> tuple[jax.Array, Any]:
        """Run the model on a batch `x [B, ...]`; returns outputs `[B, ...]` and the new statistics.

        This is the one place that knows of bfloat16. A model is judged in its own type, in which it is kept and served.
        """
        if train and self.bfloat16:
            output, statistics = self._run(variables, in_bfloat16(self.prepare(x)), key, train, in_bfloat16)
            return jax.tree.map(lambda a: a.astype(self.dtype), output), like(statistics, variables.statistics)
        return self._run(variables, self.prepare(x), key, train)

    def _run(
        self, variables: Variables, x: jax.Array, key: Any, train: bool, change: Callable = lambda module: module
    ) -> tuple[Any, Any]:
        """Run the module, as `change(module)` makes it, on prepared inputs."""
        module = change(self.module(variables, train))
        keys = None if key is None or not self._takes_key else jax.random.split(key, x.shape[0])
        extra = {} if keys is None else {"key": keys}
        if self._stateful:

            def one(params: Any, x: jax.Array, statistics: Any, extra: dict) -> Any:
                return change(self.module(Variables(params), train))(x, statistics, **extra)

            run = jax.vmap(one, in_axes=(None, 0, None, 0), out_axes=(0, None), axis_name="batch")
            return _as_if_alone(run, variables.params, x, variables.statistics, extra)
        return jax.vmap(lambda x, extra: module(x, **extra))(x, extra), variables.statistics

    def losses(self, output: jax.Array, y: jax.Array) -> jax.Array:
        """Return the loss of every sample `[B]`: cross-entropy (a mean over characters) or half the squared error."""
        if self.kind == "regression":
            error = output - y.reshape(output.shape)
            return 0.5 * jnp.sum(error * error, axis=tuple(range(1, output.ndim)))
        entropy = optax.softmax_cross_entropy_with_integer_labels(output, y)
        return entropy.reshape(entropy.shape[0], -1).mean(1)

    def loss(
        self,
        params: Any,
        statistics: Any,
        x: jax.Array,
        y: jax.Array,
        mask: jax.Array,
        key: jax.Array | None = None,
        train: bool = True,
    ) -> tuple[jax.Array, Any]:
        """Return the mean loss over the samples where `mask` is true, and the new statistics."""
        output, statistics = self.apply(Variables(params, statistics), x, key, train)
        losses = jnp.where(mask, self.losses(output, y), 0)
        return losses.sum() / jnp.maximum(mask.sum(), 1), statistics

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.score.name

    def shared(self, params: Any) -> Any:
        """Return the parameters that may be sent; the personal ones are None in it."""
        return eqx.partition(params, self._is_personal)[1]

    def own(self, params: Any) -> Any:
        """Return the personal parameters; the others are None in it."""
        return eqx.partition(params, self._is_personal)[0]

    def join(self, shared: Any, params: Any) -> Any:
        """Return `params` with its shared part replaced and its personal part as it is."""
        return eqx.combine(shared, self.own(params))

    def batch(self, x: jax.Array, indices: jax.Array, key: jax.Array | None) -> jax.Array:
        """Gather a minibatch from a client's samples, augmented if the task augments and a key is given."""
        if key is None or self.augment is None:
            return x[indices]
        return take(x, indices, key, self.augment)


def _as_if_alone(fn: Callable, *arguments: Any) -> Any:
    """Trace `fn` outside the device mesh: with it, shapes have a sharding that Equinox's State does not support."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        program, result = jax.make_jaxpr(fn, return_shape=True)(*shapes)
    leaves = jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(result), leaves)
