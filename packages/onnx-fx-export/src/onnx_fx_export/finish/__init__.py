"""What happens to a model once its nodes stand."""
