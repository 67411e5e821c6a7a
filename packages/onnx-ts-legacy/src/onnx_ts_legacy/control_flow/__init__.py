"""Ifs and loops, and what they leave in variables."""
