"""The exported program: what it holds, how it runs, is saved and verified."""
