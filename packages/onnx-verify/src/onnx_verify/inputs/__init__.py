"""What a model is run on: given, read from files, or made from its signature."""
