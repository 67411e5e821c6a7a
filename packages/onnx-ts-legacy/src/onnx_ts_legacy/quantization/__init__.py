"""Quantized programs."""
