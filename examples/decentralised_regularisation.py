"""A regularisation weight for every client, learned over a network without a hub.

python examples/decentralised_regularisation.py [STEPS]

Twelve stations fit one common linear model. Each measures nine of 36 quantities, with few samples; half of the stations
have useless instruments. How strongly should a station pull its own coefficients towards zero? Station i adds
weight(lambda_i) / 2 |its coefficients|^2 to its training loss, and lambda_i follows the hyper-gradient of everyone's
validation loss. Nobody sees another's samples, nobody knows the whole network, and a message gets through only
sometimes: the model is found by push-DIGing, the hyper-gradient by tracking (see docs/methods/bilevel.md).
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from coterie.bilevel import Problem, hypergradient
from coterie.consensus.pushsum import network, push_diging
from coterie.graphs.directed import RandomDirected

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
STATIONS, QUANTITIES, MEASURED = 12, 36, 9

# -- the data: which quantities a station measures, and what it wants to predict
random = np.random.default_rng(0)
mask = np.zeros((STATIONS, QUANTITIES), np.float32)
for i in range(STATIONS):
    mask[i, (3 * i + np.arange(MEASURED)) % QUANTITIES] = 1
useful = np.arange(QUANTITIES) < QUANTITIES // 2
truth = np.where(useful, random.normal(size=QUANTITIES), 0)


def samples(count):
    inputs = mask[:, None] * random.normal(size=(STATIONS, count, QUANTITIES))
    targets = inputs @ truth + random.normal(size=(STATIONS, count))
    return jnp.asarray(inputs, jnp.float32), jnp.asarray(targets, jnp.float32)


data = {"mask": jnp.asarray(mask), "train": samples(6), "validation": samples(20)}
test = samples(500)


# -- the problem, written for one client
def weight(lam):
    return 2 * jax.nn.sigmoid(lam)  # bounded, so that one step size suits every weight


def loss(x, part):
    return 0.5 * ((part[0] @ x - part[1]) ** 2).mean()


def inner(x, lam, data, key):
    return loss(x, data["train"]) + 0.5 * weight(lam) * (data["mask"] * x) @ x


def outer(x, lam, data):
    return loss(x, data["validation"])


problem = Problem(inner, outer)

# -- the network: every ordered pair has its own chance, between .4 and .8, that a message gets through
graph = RandomDirected(low=0.4, high=0.8).build(STATIONS, seed=0)
peers = network(graph)


@jax.jit
def solve(x, lam, key):
    """Agree on the model for the present weights, starting from the last one."""
    gradient = jax.vmap(lambda x, lam, data: jax.grad(inner)(x, lam, data, None))
    return push_diging(peers, x, lambda x, step: gradient(x, lam, data), 0.1, key, steps=200)


def error(x, part):
    return float(jax.vmap(loss)(x, part).mean())


def learned():
    """Descend on every lambda at once; returns the model and the weights."""
    adam = optax.adam(0.2)
    lam, x = jnp.full(STATIONS, -2.0), jnp.zeros((STATIONS, QUANTITIES))
    state = adam.init(lam)
    for step in range(steps):
        x = solve(x, lam, jax.random.key(step))
        estimate = hypergradient(problem, x, lam, data, graph, key=step, check=step == 0)
        updates, state = adam.update(estimate.value, state)
        lam = optax.apply_updates(lam, updates)
    return solve(x, lam, jax.random.key(steps)), lam


if __name__ == "__main__":
    nothing, common = jnp.zeros((STATIONS, QUANTITIES)), {}
    for one in (0.01, 0.03, 0.1, 0.3, 1.0):
        lam = jnp.full(STATIONS, jnp.log(one / (2 - one)))  # weight(lam) = one
        common[one] = solve(nothing, lam, jax.random.key(0))
    best = min(common, key=lambda one: error(common[one], data["validation"]))
    x, lam = learned()
    print(f"test error with the best common weight, {best:g}: {error(common[best], test):.3f}")
    print(f"test error with a weight of its own for each station: {error(x, test):.3f}")
    print("the weights:", " ".join(f"{one:.2g}" for one in weight(lam)))
    print(f"stations disagree about the model by at most {float(jnp.abs(x - x.mean(0)).max()):.1e}")
