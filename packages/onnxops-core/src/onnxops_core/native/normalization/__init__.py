"""Normalizations, with and without a residual."""
