"""PAC-ML: how far to partition each arriving training job, so that most jobs meet their deadline.

Importing this registers the gymnasium environment ``gnnsched/JobPartitioning-v0``, which is loaded when it is made.
"""

import gymnasium

JOB_PARTITIONING = "gnnsched/JobPartitioning-v0"

if JOB_PARTITIONING not in gymnasium.registry:
    gymnasium.register(JOB_PARTITIONING, entry_point="gnnsched.partition.env:JobPartitioningEnv")
