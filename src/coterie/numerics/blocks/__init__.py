"""Stochastic block models over clients, fitted by variational inference."""
