"""Quantized values and products with quantized weights."""
