"""Random numbers, and layers that draw them."""
