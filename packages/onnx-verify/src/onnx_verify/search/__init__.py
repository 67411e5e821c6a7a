"""Finding the first node that is wrong."""
