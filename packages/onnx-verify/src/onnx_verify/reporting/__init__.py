"""Pages and tables for people, JSON for programs."""
