"""The way of a graph through the conversion: its nodes in order, each to the handler that converts it."""
