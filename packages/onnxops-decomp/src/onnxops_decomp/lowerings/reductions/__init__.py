"""Operators that combine the elements along dimensions."""
