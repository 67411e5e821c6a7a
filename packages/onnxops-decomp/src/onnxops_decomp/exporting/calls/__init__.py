"""How a model is called: its arguments, the objects among them, and the names of its inputs and outputs."""
