"""Models in memory and on disk."""
