"""Agreement without a hub, on top of the verbs: push-sum and primal-dual corrections."""
