"""Operators that other libraries register with torch, by name."""
