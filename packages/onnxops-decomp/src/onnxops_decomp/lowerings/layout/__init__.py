"""Operators that make tensors, move their elements, or give them another shape."""
