"""Detection, and sampling at computed places."""
