"""Calls of operators: dispatch, and those on numbers, lists, strings and sequences."""
