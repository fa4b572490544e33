"""With whom: which site learns from which other sites, how much, what it gains and what that costs. No JAX here.

Only weights that a method learned count. The neighbours of `gossip-sgd` and the like are fixed or drawn at random, and
say nothing about who is similar.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.experiment.result import Result
from coterie.numerics.agreement import adjusted_rand
from coterie.numerics.components import connected_components
from coterie.spec import nearest
from coterie.storage.csv_text import csv_bytes
from coterie.storage.durable import durable_write

if TYPE_CHECKING:
    from coterie.comparison.comparison import Comparison

__all__ = [
    "GroupsFound",
    "Tie",
    "best_learner",
    "groups_found",
    "learned_weights",
    "learns_graph",
    "ties",
    "who",
    "with_whom",
    "write_who",
]

# Methods of the product that learn with whom to cooperate: by weights, or by giving similar sites the same model.
TIED = frozenset(("network-lasso", "component"))
LEARNERS = TIED | {"scool-sbm", "scool-attention", "scool-mmsbm", "fomo", "dada", "meta-l2c", "pfedgraph", "fedamp"}
NOBODY = "nobody"
LEAST = 0.01  # a smaller weight is not worth a row
SHUFFLES = 39  # of each site's weights: groups must be clearer than in every one of them (a chance of 1 in 40)
LARGEST = 500  # sites up to which groups are searched


class Tie(NamedTuple):
    """A row of `who`: a site and one of its partners."""

    site: str
    learns_from: str
    weight: float
    gain: float
    bytes: int


def who(subject: "Comparison | Result", method: str | None = None, top: int | None = None) -> Any:
    """Return with whom every site learns as a DataFrame: site, learns_from, weight, gain, bytes.

    Args:
        subject: a comparison (its best method that learned a graph; weights are means over its runs), or one run.
        method: the label of another method of the comparison.
        top: at most this many partners of a site; None: all with a weight of at least 0.01.

    Rows are in the order of the sites, the heaviest partner first. `gain` is the site's gain over training alone with
    this method (empty without such a baseline). `bytes` is what the site exchanged to learn from this partner, per
    run; what goes through a hub is shared out equally over its rows. A site without a partner has one row that says so.
    """
    import pandas as pd

    return pd.DataFrame(ties(subject, method, top), columns=list(Tie._fields))


def ties(subject: "Comparison | Result", method: str | None = None, top: int | None = None) -> list[Tie]:
    """Return the rows of `who`, without pandas, which takes longer to import than a report to write."""
    results, gains = _subject(subject, method)
    weights, names = learned_weights(results), results[0].names
    edges, hub = _bytes(results)
    rows = []
    for i, name in enumerate(names):
        order = np.argsort(-weights[i], kind="stable")
        partners = [j for j in order if j != i and weights[i, j] >= LEAST][:top]
        gain = float("nan") if gains is None else float(gains[i])
        share = hub[i] / max(1, len(partners))
        rows += [Tie(name, names[j], float(weights[i, j]), gain, round(edges[i, j] + share)) for j in partners]
        if not partners:
            rows.append(Tie(name, NOBODY, 0.0, gain, round(float(hub[i]))))
    return rows


def write_who(subject: "Comparison | Result", path: str | Path, method: str | None = None) -> Path:
    """Write the table of `who` as a CSV file."""
    frame = who(subject, method)
    frame["weight"], frame["gain"] = frame["weight"].round(4), frame["gain"].round(6)
    durable_write(Path(path), csv_bytes(frame))
    return Path(path)


def with_whom(comparison: "Comparison") -> str:
    """Say in one line which groups the best method that learned a graph has found; empty if none learned one."""
    label = best_learner(comparison)
    return "" if label is None else f"With whom, by {label}: {groups_found(comparison, label).sentence}"


def learns_graph(result: Result) -> bool:
    """Whether a run's method learned with whom to cooperate, and has weights that say so."""
    if not result.graphs:
        return False
    name = result.config["method"]["name"]
    return name in LEARNERS or (":" in name and result.learns_weights)  # of the user's own: its class is not imported


def best_learner(comparison: "Comparison") -> str | None:
    """Return the label of the best method that learned a graph; None if none of them did."""
    learners = [label for label, results in comparison.results.items() if results and learns_graph(results[0])]
    mean = {label: comparison.score.sign * comparison.scores(label).mean() for label in learners}
    return max(learners, key=lambda label: mean[label], default=None)


def learned_weights(results: Sequence[Result]) -> np.ndarray:
    """Return the weights of the kept models `[K, K]`, mean over the runs: row i is how site i weighs the others."""
    kept = [r.weights(r.best_round if r.best_round in r.graphs else None) for r in results]
    return np.mean(kept, axis=0)


def _subject(subject: "Comparison | Result", method: str | None) -> tuple[list[Result], np.ndarray | None]:
    """Return the runs whose weights are asked for, and every site's gain over training alone, if there is one."""
    if isinstance(subject, Result):
        results, label, gains = [subject], subject.config["method"]["name"], None
        if method is not None and method != label:
            raise CoterieError(f"method is for a comparison; this is one run, of {label}")
    else:
        if method is not None and method not in subject.results:
            raise CoterieError(f"the comparison has no method {method}{nearest(method, list(subject.results))}")
        chosen = best_learner(subject) if method is None else method
        if chosen is None:
            raise CoterieError(
                "no method of this comparison learned with whom to cooperate; add one, for example scool-sbm or "
                "network-lasso"
            )
        label, results, gains = chosen, subject.results[chosen], subject.gains(chosen)
    if not learns_graph(results[0]):
        why = "its neighbours are given, not learned" if results[0].graphs else "its sites talk to a hub or to nobody"
        raise CoterieError(f"{label} does not learn with whom to cooperate: {why}; choose a method such as scool-sbm")
    return results, gains


def _bytes(results: Sequence[Result]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes each site exchanged to learn from each other one `[K, K]`, and with a hub `[K]`, per run."""
    count = len(results[0].names)
    edges, hub = np.zeros((count, count)), np.zeros(count)
    for result in results:
        ledger = result.ledger
        for block in ledger.blocks:
            for link in ("heard", "told"):
                if f"{link}_bytes" in block:
                    here = np.arange(count)[:, None], block.get("neighbours", ledger.neighbours)
                    np.add.at(edges, here, block[f"{link}_bytes"].astype(float).sum(0))
            for link in ("up", "down"):
                hub += block[f"{link}_bytes"].astype(float).sum(0) if f"{link}_bytes" in block else 0
    return edges / len(results), hub / len(results)


@dataclasses.dataclass(frozen=True)
class GroupsFound:
    """The groups of sites that learned weights form.

    Attributes:
        groups: the names of each group's sites, the largest group first; empty where the weights form no groups.
        labels: the number of each site's group, from 0; -1 where there are none.
        sentence: what was found, in one sentence.
        agreement: adjusted Rand index with the known groups (1: the same); None where no groups are known.
    """

    groups: tuple[tuple[str, ...], ...]
    labels: np.ndarray
    sentence: str
    agreement: float | None = None


def groups_found(subject: "Comparison | Result", method: str | None = None, known: Any = None) -> GroupsFound:
    """Find the groups that the learned weights form.

    With `network-lasso` and `component` they are the sites that have exactly the same model (in more than half of the
    runs). Otherwise they maximise modularity (Clauset, Newman and Moore 2004), and are only reported if they are
    clearer than those of weights shuffled within every row, so that a graph with few edges and no structure has none.
    `known` are the true groups; a comparison brings its own.
    """
    results, _ = _subject(subject, method)
    names = results[0].names
    known = known if known is not None or isinstance(subject, Result) else subject.clients.get("groups")
    if len(names) > LARGEST:
        nothing = f"Groups are only looked for among up to {LARGEST} sites."
        return GroupsFound((), np.full(len(names), -1), nothing)
    tied = results[0].config["method"]["name"] in TIED
    labels = _same_models(results) if tied else _communities(_as_key(learned_weights(results)))
    if labels is None:
        return GroupsFound((), np.full(len(names), -1), "No groups of sites stand out.")
    groups = tuple(tuple(names[i] for i in np.flatnonzero(labels == g)) for g in range(labels.max() + 1))
    agreement, truth = None, ""
    if known is not None and len(set(np.asarray(known).tolist())) > 1:
        agreement = adjusted_rand(known, labels)
        truth = ", which are the true ones" if agreement > 1 - 1e-9 else f" (adjusted Rand index {agreement:.2f})"
    return GroupsFound(groups, labels, f"{_sentence(groups)}{truth}.", agreement)


def _sentence(groups: Sequence[Sequence[str]]) -> str:
    """Say how many groups there are and how large."""
    if len(groups) == 1:
        return f"All {len(groups[0])} sites form one group"
    sizes = [len(group) for group in groups]
    words = (
        f"of {sizes[0]} sites each"
        if len(set(sizes)) == 1
        else f"of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} sites"
    )
    return f"{len(groups)} groups {words} were found"


def _same_models(results: Sequence[Result]) -> np.ndarray | None:
    """Return the groups of sites that have the same model in more than half of the runs; None if all differ."""
    clusters = [r.clusters(r.best_round if r.best_round in r.graphs else max(r.graphs)) for r in results]
    together = np.mean([c[:, None] == c[None, :] for c in clusters], axis=0) > 0.5
    one, other = np.nonzero(together)
    found = np.asarray(connected_components(one, other, len(together)))
    sizes = {label: (found == label).sum() for label in np.unique(found)}
    if max(sizes.values()) == 1:
        return None
    order = sorted(sizes, key=lambda label: (-sizes[label], np.flatnonzero(found == label)[0]))
    return np.array([order.index(label) for label in found])


def _as_key(weights: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, weights.tolist()))


@functools.lru_cache(maxsize=4)  # the answer on the screen and the report ask for the same
def _communities(weights: tuple[tuple[float, ...], ...]) -> np.ndarray | None:
    """Return each site's group `[K]`, the largest group first; None where shuffled weights form groups as clear."""
    tie = np.array(weights)
    np.fill_diagonal(tie, 0)
    if len(tie) < 3 or not (tie > 0).any():
        return None
    labels, quality = _modular(tie)
    rng, others = np.random.default_rng(0), ~np.eye(len(tie), dtype=bool)
    if labels.max() == 0:
        return None
    for _ in range(SHUFFLES):
        shuffled = np.zeros_like(tie)
        shuffled[others] = rng.permuted(tie[others].reshape(len(tie), -1), axis=1).ravel()
        if _modular(shuffled)[1] >= quality:
            return None
    return labels


def _modular(tie: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the groups of greatest modularity (greedily) and their modularity."""
    import networkx as nx

    graph = nx.from_numpy_array((tie + tie.T) / 2)
    groups = nx.community.greedy_modularity_communities(graph, weight="weight")
    labels = np.zeros(len(tie), int)
    for number, group in enumerate(sorted(groups, key=lambda group: (-len(group), min(group)))):
        labels[list(group)] = number
    return labels, float(nx.community.modularity(graph, groups, weight="weight"))
