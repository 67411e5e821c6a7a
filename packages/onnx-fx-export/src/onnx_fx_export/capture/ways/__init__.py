"""Models that go several ways by their data: each is captured, and they become one program."""
