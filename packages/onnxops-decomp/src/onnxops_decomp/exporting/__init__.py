"""What both exporters share: their options, the exported program, and how state, names and sizes are described."""
