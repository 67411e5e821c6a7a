"""Conditions on sizes kept as conditions: models that do one thing at some sizes, and another one at others."""
