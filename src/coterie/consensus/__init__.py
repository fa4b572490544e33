"""Consensus without a hub, built on the verbs: push-sum and primal-dual corrections."""
