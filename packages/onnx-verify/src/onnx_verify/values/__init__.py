"""Arrays and their types: how they differ, how far they may, and how they are stored."""
