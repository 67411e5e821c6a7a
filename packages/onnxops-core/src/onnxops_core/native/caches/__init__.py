"""TensorScatter, which updates a cache."""
