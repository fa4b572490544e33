"""SCooL with a mixed-membership block model: a client may have a different role towards each of the others.

Li et al. 2024, appendix F. As `scool-sbm`, but the roles of both clients are drawn for every pair separately. The
concentration of the roles is identifiable here and is learned, with a corrected gradient (the paper's is wrong: see
docs/reference/papers.md). Memory grows with clients^2 x blocks.
"""

from typing import Any

import jax
import jax.numpy as jnp

from coterie.learning.task import Task
from coterie.methods.base import method
from coterie.methods.shared.evidence import Evidence
from coterie.methods.shared.scool import State
from coterie.methods.shared.scool_blocks import BlockScool, share_losses
from coterie.numerics.blocks import mmsbm, sbm
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["ScoolMMSBM"]


@method
class ScoolMMSBM(BlockScool):
    """Learn with whom to cooperate, with a mixed-membership block model as prior."""

    blocks: int = param(0, "roles (M); 0: one per four clients, 2 to 10", at_least=0)
    learn_alpha: bool = param(True, "whether to learn the concentration of the roles")

    def e_step(
        self, task: Task, state: State, moved: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Infer roles and weights from all clients' losses."""
        losses, known, own_loss, baseline = share_losses(evidence, peers)
        ell = sbm.centre(losses, known, self.rule(task), own_loss=own_loss, log_classes=baseline, margin=self.margin)
        blocks = min(self.blocks or max(2, min(10, peers.clients // 4)), peers.clients)
        inferred = mmsbm.infer_mm(
            ell,
            known,
            blocks,
            key,
            sweeps=self.sweeps,
            temperature=self.temperature,
            pseudo_counts=self.pseudo_counts,
            learn_alpha=self.learn_alpha,
            prior=(self.within, self.between),
        )
        weights = jnp.where(evidence.arrived, inferred.weights[peers.ids[:, None], peers.neighbours], 0)
        own_weight = jnp.ones_like(own_loss)
        if self.own == "competes":  # the weight of a pair in which both have the client's mean roles
            roles = inferred.gamma / inferred.gamma.sum(1, keepdims=True)
            logit = jnp.diag(jnp.log(inferred.affinity) - jnp.log1p(-inferred.affinity))
            own_weight = jax.nn.sigmoid((baseline - own_loss + roles @ logit) / self.temperature)
        return weights, own_weight[peers.ids], (), None
