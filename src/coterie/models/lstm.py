"""Next-character prediction with stacked LSTM layers (McMahan et al. 2017, section 3), parameterised as in PyTorch."""

import equinox as eqx
import jax
from jax import Array

from coterie.errors import CoterieError
from coterie.models.layers import rows_of, uniform
from coterie.models.recurrent import lstm_layer
from coterie.spec import param, spec

__all__ = ["Lstm", "LstmNetwork"]


@spec
class Lstm:
    """A character embedding, stacked LSTM layers, and a linear layer that predicts the next character everywhere."""

    embedding: int = param(8, "size of a character's embedding", at_least=1)
    hidden: int = param(256, "units of each LSTM layer", at_least=1)
    layers: int = param(2, "number of LSTM layers", at_least=1, at_most=100)

    def build(self, shape: tuple[int, ...], outputs: int, key: Array) -> "LstmNetwork":
        """Return a network for texts of this length; `outputs` is the number of characters."""
        if len(shape) != 1:
            raise CoterieError(f"model lstm needs texts of shape (length,), not {tuple(shape)}; choose another model")
        embedding_key, output_key, key = jax.random.split(key, 3)
        lstm = {}
        for layer in range(self.layers):
            inputs = self.embedding if layer == 0 else self.hidden
            shapes = {
                "weight_ih": (4 * self.hidden, inputs),
                "weight_hh": (4 * self.hidden, self.hidden),
                "bias_ih": (4 * self.hidden,),
                "bias_hh": (4 * self.hidden,),
            }
            keys = jax.random.split(jax.random.fold_in(key, layer), len(shapes))
            for name_key, (name, size) in zip(keys, shapes.items(), strict=True):
                lstm[f"{name}_l{layer}"] = uniform(name_key, size, self.hidden)
        return LstmNetwork(
            embedding=eqx.nn.Embedding(outputs, self.embedding, key=embedding_key),
            lstm=lstm,
            fc=eqx.nn.Linear(self.hidden, outputs, key=output_key),
            layers=self.layers,
        )


class LstmNetwork(eqx.Module):
    """Parameters `embedding.weight`, `lstm.weight_ih_l0` (and `weight_hh`, `bias_ih`, `bias_hh`; gates ifgo), `fc`."""

    embedding: eqx.nn.Embedding
    lstm: dict[str, Array]
    fc: eqx.nn.Linear
    layers: int = eqx.field(static=True)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Return the outputs `[length, characters]` for one text `[length]` of character numbers."""
        states = rows_of(self.embedding.weight, x)
        for layer in range(self.layers):
            states = lstm_layer(self.lstm, f"l{layer}", states)
        return jax.vmap(self.fc)(states)
