"""Loops over the rows of a tensor whose number the data decides, as Python code writes them."""
