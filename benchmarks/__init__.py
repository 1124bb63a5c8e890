"""Side by side with the peers: ``python -m benchmarks`` times a backend of this SDK against what a user would pick instead.

Each row (a kernel at one size, a model, a training step) runs in a process of its own, in which all contestants take turns:
one sample each per round, in random order, so that drift of the machine meets all of them alike. What is compared is the ratio
within a round. Outputs are checked against float64 before anything is timed; a contestant that computes something else has a
failed row and no time.

The parts, in order of use: ``networks`` and ``kernels`` (what is run) make a ``Program``; ``contestants`` make it callable;
``accuracy`` judges the outputs; ``timing`` takes samples; ``sections/`` put these together, one file each; ``worker`` and
``run`` are the two ends of a row's process; ``results`` is the JSON with everything derived from it; ``report``, ``plots`` and
``pages`` show it.
"""
