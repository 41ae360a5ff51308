"""Settings of all tests: one thread for torch and numba, the same hypothesis examples everywhere."""

import os

# Before torch is imported. Threads that wait for each other make small networks slower, and results vary.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# A busy machine is not a fault, and the same examples everywhere make a failure repeatable.
settings.register_profile("gnnsched", deadline=None, derandomize=True)
settings.load_profile("gnnsched")
