"""The options of an export."""
