"""Bytes on disk: durable writes, checkpoints, TOML. No JAX is needed to import this."""
