"""What the variables of a program hold while it is converted, and the state of modules."""
