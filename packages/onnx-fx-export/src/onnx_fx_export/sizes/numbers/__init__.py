"""Python's numbers, and the functions of ``math``, NumPy and Python itself that take them, where they are of sizes."""
