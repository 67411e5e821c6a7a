"""From a model and its arguments to a TorchScript graph."""
