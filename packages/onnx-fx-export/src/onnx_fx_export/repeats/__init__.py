"""What a model repeats: blocks that are captured once, and calls of modules that become functions."""
