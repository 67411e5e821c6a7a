"""What the user passes: the model, its example call, and the examples that capture needs instead of it."""
