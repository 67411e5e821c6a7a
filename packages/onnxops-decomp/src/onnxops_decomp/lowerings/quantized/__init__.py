"""Quantized tensors and the products of them."""
