"""``gnnsched embed``: the policy's embeddings of networks for TensorBoard's projector."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from gnnsched.cli.options import (
    Checkpoint,
    Folder,
    NetworkFiles,
    at_least_one,
    message_bytes,
)
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import counted


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Write embeddings of servers, switches and in-flight flows at several moments of a schedule for TensorBoard."""

    topology: NetworkFiles
    logdir: Folder
    """Where TensorBoard looks."""
    checkpoint: Checkpoint = None
    """Of the policy (default: the shipped one)."""
    message_size: Annotated[str, arg(metavar="SIZE")] = "1GiB"
    """Bytes that every participant holds."""
    chunks_per_server: int = 4
    """Chunks rooted at each participant."""
    seed: int = 0
    """Of the plan."""

    def run(self) -> int:
        at_least_one("embed", self.topology)
        from gnnsched.topology.formats import load_topology

        size = message_bytes(self.message_size)
        topologies = [load_topology(path) for path in self.topology]
        from gnnsched.planning import load_policy
        from gnnsched.report.embeddings import write_embeddings

        with Progress("embedding", len(topologies)) as progress:
            points = write_embeddings(
                load_policy(self.checkpoint),
                topologies,
                self.logdir,
                size,
                self.chunks_per_server,
                self.seed,
                progress.step,
            )
        for (kind, percent), number in points.items():
            print(f"{kind} at {percent} % of the schedule: {counted(number, 'point')}")
        print(f"see them with: tensorboard --logdir {self.logdir}")
        return 0
