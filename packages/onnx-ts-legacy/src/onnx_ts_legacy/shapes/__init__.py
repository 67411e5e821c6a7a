"""Dtypes, ranks and sizes of what calls return."""
