"""Parameters, buffers and constants: where they come from, and how they become initializers."""
