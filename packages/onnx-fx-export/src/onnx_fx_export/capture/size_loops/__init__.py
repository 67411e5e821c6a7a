"""Loops over a dynamic number of steps, written out as scans.

``for i in range(x.shape[1])`` makes a number of the size, and so does ``for row in x``. The code of a model is
rewritten for a capture: where the number of steps is dynamic, the body becomes the function of a ``scan``. Names that
it assigns and that have a value for the next step, or for what comes behind, are carried from step to step; what it
appends to lists is stacked. Where a condition asks for the number of the step, both branches are computed. As what the
body does besides may be lost, what is captured so is compared with the model.

The parts of ``x.split(3)`` are as many as the size says as well: ``x.split(3)[0]`` becomes a slice.
"""
