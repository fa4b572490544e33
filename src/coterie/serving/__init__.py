"""Trained models in use: open a run, predict, take in a new client, export a client's model."""
