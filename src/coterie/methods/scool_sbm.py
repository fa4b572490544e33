"""SCooL with a stochastic block model: clients belong to hidden blocks, and blocks cooperate with each other or not.

P0 section 4.2. The E-step is variational inference over all clients' cross-losses, which everybody gets by `share` and
everybody computes alike; so there is no coordinator. Updates as corrected in `coterie.numerics.blocks.sbm`.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from coterie.data.clients import Federation
from coterie.errors import CoterieError
from coterie.learning.task import Task, Variables
from coterie.methods.base import method
from coterie.methods.shared.scool import Evidence, Scool, State, share_losses
from coterie.numerics.blocks import sbm
from coterie.peers.base import Peers
from coterie.spec import param

__all__ = ["ScoolSBM"]


@method
class ScoolSBM(Scool):
    """Learn with whom to cooperate, with a block model as prior."""

    blocks: int = param(0, "hidden blocks (M); 0 takes one for every four clients, 2 to 25", at_least=0)
    sweeps: int = param(10, "rounds of variational updates in an E-step", at_least=1)
    pseudo_counts: float = param(20.0, "how many pairs the prior on the block matrix is worth", at_least=0)
    baseline: Literal["classes", "median", "own"] = param(
        "classes", "what a loss is compared with: log(classes), the median, or its owner's loss"
    )
    margin: float = param(0.5, "how much worse than its owner a model may be, with baseline = 'own'", at_least=0)

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
        """Infer blocks and weights from everyone's losses."""
        losses, known, own_loss, baseline = share_losses(evidence, peers)
        rows = (peers.ids[:, None], peers.neighbours)
        if self.faithful:
            return *self._as_published(losses, own_loss, rows, evidence, peers, key), (), None
        ell = sbm.centre(losses, known, self.baseline, own_loss=own_loss, log_classes=baseline, margin=self.margin)
        blocks = min(self.blocks or max(2, min(25, peers.clients // 4)), peers.clients)
        found = sbm.infer(
            ell, known, blocks, key, sweeps=self.sweeps, temperature=self.temperature, pseudo_counts=self.pseudo_counts
        )
        weights = jnp.where(evidence.heard, found.weights[rows], 0)
        return weights, self._own_weight(found, baseline - own_loss)[peers.ids], (), None

    def _own_weight(self, found: sbm.SBM, own_ell: jax.Array) -> jax.Array:
        """Weigh each client's own data: 1, or as a pair within its block would be weighed with its own likelihood."""
        if self.own == "apart":
            return jnp.ones_like(own_ell)
        logit = jnp.diag(jnp.log(found.affinity) - jnp.log1p(-found.affinity))
        return jax.nn.sigmoid((own_ell + found.memberships @ logit) / self.temperature)

    def _as_published(
        self, losses: jax.Array, own_loss: jax.Array, rows: Any, evidence: Evidence, peers: Peers, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Repeat the authors' program: two blocks, a fixed block matrix, two sweeps from a random start, no baseline.

        After sparsification a dropped pair counts as a perfect fit (log-likelihood 0), which is one of its errors; the
        temperature divides prior and likelihood; the client itself is weighed like any other and the row scaled.
        """
        everyone = jnp.ones(losses.shape, bool)
        ell = -losses  # zero where nothing was asked
        found = sbm.start(ell, everyone, 2, key, how="dirichlet")
        found = sbm.update_weights(found, ell, everyone, self.temperature)  # first sweep
        found = sbm.update_memberships(found, ell, everyone, how="sequential")
        found = sbm.update_weights(sbm.update_gamma(found), ell, everyone, self.temperature)  # second: only w is used
        logit = jnp.log(found.affinity) - jnp.log1p(-found.affinity)
        own = jnp.einsum("kg,gh,kh->k", found.memberships, logit, found.memberships)  # its self pairs, as printed
        own_weight = jax.nn.sigmoid((own - own_loss) / self.temperature)
        return jnp.where(evidence.heard, found.weights[rows], 0), own_weight[peers.ids]
