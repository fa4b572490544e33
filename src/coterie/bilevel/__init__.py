"""Hyper-gradients of bilevel problems over a network of clients (see `problem.py`)."""

from coterie.bilevel.hypergradients import Hypergradient
from coterie.bilevel.problem import Problem, expected_statistics, gossip_steps, hypergradient

__all__ = ["Hypergradient", "Problem", "expected_statistics", "gossip_steps", "hypergradient"]
