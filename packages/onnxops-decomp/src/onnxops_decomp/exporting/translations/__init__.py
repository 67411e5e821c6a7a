"""Translations that a user gives for one export."""
