"""The recurrent parts of language models."""
