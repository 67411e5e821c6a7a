"""Dynamic sizes: how they are declared, what a model takes for granted of them, and how that is checked."""
