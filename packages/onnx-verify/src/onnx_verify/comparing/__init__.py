"""Comparing two runtimes on the same inputs."""
