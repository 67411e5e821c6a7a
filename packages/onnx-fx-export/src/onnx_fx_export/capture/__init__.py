"""From a model and its example to an ExportedProgram."""
