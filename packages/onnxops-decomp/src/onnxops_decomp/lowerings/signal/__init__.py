"""Fourier transforms and the windows that they are taken in."""
