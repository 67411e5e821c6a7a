"""What every native operator shares: its declaration, the checks of its arguments, and the choice of a backend."""
