"""SCooL with a stochastic block model: clients belong to hidden blocks, and blocks cooperate with each other or not.

Li et al. 2024, section 4.2. The E-step is variational inference over all clients' cross-losses. Every client gets them
by `share` and computes the same result, so there is no coordinator. The updates are corrected: see
`coterie.numerics.blocks.sbm` and docs/reference/papers.md.
"""

from typing import Any

import jax
import jax.numpy as jnp

from coterie.learning.task import Task
from coterie.methods.base import method
from coterie.methods.shared.evidence import Evidence
from coterie.methods.shared.scool import State
from coterie.methods.shared.scool_blocks import BlockScool, share_losses
from coterie.numerics.blocks import sbm
from coterie.peers.base import Peers

__all__ = ["ScoolSBM"]


@method
class ScoolSBM(BlockScool):
    """Learn with whom to cooperate, with a block model as prior."""

    def e_step(
        self, task: Task, state: State, moved: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Infer blocks and weights from all clients' losses."""
        losses, known, own_loss, baseline = share_losses(evidence, peers)
        rows = (peers.ids[:, None], peers.neighbours)
        if self.faithful:
            return *self._as_published(losses, own_loss, rows, evidence, peers, key), (), None
        ell = sbm.centre(losses, known, self.rule(task), own_loss=own_loss, log_classes=baseline, margin=self.margin)
        blocks = min(self.blocks or max(2, min(25, peers.clients // 4)), peers.clients)
        inferred = sbm.infer(
            ell,
            known,
            blocks,
            key,
            sweeps=self.sweeps,
            temperature=self.temperature,
            pseudo_counts=self.pseudo_counts,
            prior=(self.within, self.between),
        )
        weights = jnp.where(evidence.arrived, inferred.weights[rows], 0)
        return weights, self._own_weight(inferred, baseline - own_loss)[peers.ids], (), None

    def _own_weight(self, inferred: sbm.SBM, own_ell: jax.Array) -> jax.Array:
        """Return the weight of each client's own data: 1, or that of a pair within its block with its likelihood."""
        if self.own == "apart":
            return jnp.ones_like(own_ell)
        logit = jnp.diag(jnp.log(inferred.affinity) - jnp.log1p(-inferred.affinity))
        return jax.nn.sigmoid((own_ell + inferred.memberships @ logit) / self.temperature)

    def _as_published(
        self, losses: jax.Array, own_loss: jax.Array, rows: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Do what the authors' program does: two blocks, a fixed block matrix, two sweeps, random start, no baseline.

        After sparsification a dropped pair counts as a perfect fit (log-likelihood 0), which is one of its errors; the
        temperature divides prior and likelihood; the client itself is treated like any other and the row scaled.
        """
        everyone = jnp.ones(losses.shape, bool)
        ell = -losses  # zero for pairs without an edge
        inferred = sbm.start(ell, everyone, 2, key, how="dirichlet")
        inferred = sbm.update_weights(inferred, ell, everyone, self.temperature)  # first sweep
        inferred = sbm.update_memberships(inferred, ell, everyone, how="sequential")
        inferred = sbm.update_weights(
            sbm.update_gamma(inferred), ell, everyone, self.temperature
        )  # second: only w is used
        logit = jnp.log(inferred.affinity) - jnp.log1p(-inferred.affinity)
        own = jnp.einsum("kg,gh,kh->k", inferred.memberships, logit, inferred.memberships)  # its self pairs, as printed
        own_weight = jax.nn.sigmoid((own - own_loss) / self.temperature)
        return jnp.where(evidence.arrived, inferred.weights[rows], 0), own_weight[peers.ids]
