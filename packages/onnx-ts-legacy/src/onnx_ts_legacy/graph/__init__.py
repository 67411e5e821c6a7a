"""What a TorchScript graph says: its nodes and blocks, where they come from, its codes of dtypes."""
