"""The gymnasium environment ``gnnsched/AllReduce-v0``: registered on import, loaded when it is made.

Its compiled counterpart, which decides whole episodes without Python per decision, is
``gnnsched.collective.decode``.
"""

import gymnasium

ALL_REDUCE = "gnnsched/AllReduce-v0"

if ALL_REDUCE not in gymnasium.registry:
    gymnasium.register(ALL_REDUCE, entry_point="gnnsched.envs.allreduce:AllReduceEnv")
