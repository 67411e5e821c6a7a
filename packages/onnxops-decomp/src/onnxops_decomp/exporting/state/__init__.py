"""What a model changes outside of its buffers: found, decided upon, and put back."""
