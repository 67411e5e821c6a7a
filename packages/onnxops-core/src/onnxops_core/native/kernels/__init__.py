"""Triton kernels for NVIDIA GPUs. A module here is imported only when a call is about to use it."""
