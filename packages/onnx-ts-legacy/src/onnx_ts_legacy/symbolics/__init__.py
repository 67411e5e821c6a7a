"""What custom symbolics are written with."""
