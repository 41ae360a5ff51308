"""Checkpoints of the partitioning policy, shipped ones among them."""

import os
from pathlib import Path

from gnnsched.partition.features import FEATURES
from gnnsched.partition.network import PartitionConfig, PartitionPolicy
from gnnsched.partition.observation import NETWORK_EDGE_FEATURES, NETWORK_NODE_FEATURES, SUMMARY_FEATURES
from gnnsched.planning.checkpoints import shipped_checkpoint
from gnnsched.training.checkpoint import Kind, load_network

PARTITION: Kind[PartitionPolicy] = Kind(
    "gnnsched-partition-checkpoint",
    "gnnsched partition train",
    {
        "node": NETWORK_NODE_FEATURES,
        "edge": NETWORK_EDGE_FEATURES,
        "summary": SUMMARY_FEATURES,
        "choice": FEATURES,
    },
    lambda architecture: PartitionPolicy(PartitionConfig(**architecture)),
)


def shipped_partition_checkpoint(ddls_units: bool) -> Path:
    """The folder of the policy trained in consistent units, or in those of the published program."""
    return shipped_checkpoint("partition_ddls" if ddls_units else "partition")


def load_partition_policy(folder: str | os.PathLike[str]) -> PartitionPolicy:
    """The policy in ``folder``. Raises InputError where there is none, or a damaged one."""
    return load_network(folder, PARTITION)
