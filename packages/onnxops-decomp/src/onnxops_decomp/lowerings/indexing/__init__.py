"""Operators that pick, place, sort or count elements by what other tensors contain."""
