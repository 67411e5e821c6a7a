"""Weights of a model: where their memory is, and how others take their place."""
