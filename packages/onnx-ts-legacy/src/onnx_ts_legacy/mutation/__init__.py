"""Writes to tensors and to what shares their memory."""
