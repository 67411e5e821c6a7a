"""Functions of libraries that decide by data, in a form that one graph holds, while a model is captured."""
