"""The model's outputs, functions and metadata, once the program is converted."""
