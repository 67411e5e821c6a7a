"""Runtimes, models with state, and the values inside a running model."""
