"""What code asks of data: marks in a graph, answers that do not raise, and the ``if`` in the source."""
