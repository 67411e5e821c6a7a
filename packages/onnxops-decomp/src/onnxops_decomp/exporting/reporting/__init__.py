"""What is recorded of an export, for users and for other tools."""
