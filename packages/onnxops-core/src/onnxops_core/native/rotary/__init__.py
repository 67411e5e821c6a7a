"""RotaryEmbedding."""
