"""C kernels for the CPU, compiled on request."""
