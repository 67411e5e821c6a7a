"""Exports of all model classes that a small random configuration can build, and the page about them."""
