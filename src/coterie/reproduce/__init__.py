"""Experiments of the papers, ready to run: the paper's figures beside ours. No JAX here."""

from typing import Any, NamedTuple

__all__ = ["Reproduction"]


class Reproduction(NamedTuple):
    """An experiment of a paper: the comparison to run, and what the paper reports for each method."""

    title: str
    tables: dict[str, Any]  # a comparison, as in a TOML file
    paper: dict[str, float]  # mean accuracy in percent by label; empty where the paper has no figure
    note: str
