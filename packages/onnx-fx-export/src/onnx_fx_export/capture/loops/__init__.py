"""Loops over the rows of a tensor of which data decides how many there are, as Python code writes them."""
