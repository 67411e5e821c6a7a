"""Several engines on one model: who stands alone, and where it runs."""
