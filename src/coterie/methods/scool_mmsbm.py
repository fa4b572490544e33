"""SCooL with a mixed-membership block model: a client may play another role towards each of the others.

P0 appendix F. As `scool-sbm`, but every pair draws the roles of both its ends anew; the concentration of the roles is
identifiable here and is learned (by the corrected gradient, E0.2). Storage grows with clients^2 x blocks.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import method
from coterie.methods.shared.scool import Evidence, Scool, State, share_losses
from coterie.numerics.blocks import mmsbm, sbm
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["ScoolMMSBM"]


@method
class ScoolMMSBM(Scool):
    """Learn with whom to cooperate, with a mixed-membership block model as prior."""

    blocks: int = param(0, "roles (M); 0 takes one for every four clients, at least 2 and at most 10", at_least=0)
    sweeps: int = param(10, "rounds of variational updates in an E-step", at_least=1)
    pseudo_counts: float = param(20.0, "how many pairs the prior on the block matrix is worth", at_least=0)
    baseline: Literal["classes", "median", "own"] = param(
        "classes", "what a loss is compared with: log(classes), the median, or its owner's loss"
    )
    margin: float = param(0.5, "how much worse than its owner a model may be, with baseline = 'own'", at_least=0)
    learn_alpha: bool = param(True, "learn the concentration of the roles")

    def check(self, task: Task, federation: Federation) -> None:
        """Refuse more blocks than clients."""
        super().check(task, federation)
        if self.blocks > len(federation):
            raise CoterieError(f"method.blocks is {self.blocks} but there are only {len(federation)} clients; lower it")

    def start_prior(self, task: Task, peers: Peers, variables: Variables, key: jax.Array) -> Any:
        """Nothing is remembered: every round starts from k-means on the fresh losses."""
        return ()

    def e_step(
        self, task: Task, state: State, moved: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Infer roles and weights from everyone's losses."""
        losses, known, own_loss, baseline = share_losses(evidence, peers)
        ell = sbm.centre(losses, known, self.baseline, own_loss=own_loss, log_classes=baseline, margin=self.margin)
        blocks = min(self.blocks or max(2, min(10, peers.clients // 4)), peers.clients)
        found = mmsbm.infer_mm(
            ell,
            known,
            blocks,
            key,
            sweeps=self.sweeps,
            temperature=self.temperature,
            pseudo_counts=self.pseudo_counts,
            learn_alpha=self.learn_alpha,
        )
        weights = jnp.where(evidence.heard, found.weights[peers.ids[:, None], peers.neighbours], 0)
        own_weight = jnp.ones_like(own_loss)
        if self.own == "competes":  # as a pair would be weighed whose ends both play the client's usual roles
            roles = found.gamma / found.gamma.sum(1, keepdims=True)
            logit = jnp.diag(jnp.log(found.affinity) - jnp.log1p(-found.affinity))
            own_weight = jax.nn.sigmoid((baseline - own_loss + roles @ logit) / self.temperature)
        return weights, own_weight[peers.ids], (), None
