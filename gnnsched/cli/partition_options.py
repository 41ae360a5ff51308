"""Options that the subcommands of ``gnnsched partition`` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from gnnsched.cli.progress import Progress

if TYPE_CHECKING:
    from gnnsched.partition.world import World

Profiles = Annotated[Path | None, arg(metavar="DIR")]
ClusterName = Annotated[str, arg(metavar="ramp32|TOPOLOGY")]


def load(
    cluster: str, profiles: Path | None, ddls_units: bool, holding: Literal["faithful", "exact"]
) -> "World":
    """The cluster and its jobs; says what it does where that takes long."""
    with Progress("simulating the jobs", None) as progress:
        progress.say("loading kernels")
        from gnnsched.partition.cases import load_world

        return load_world(cluster, profiles, ddls_units, holding, progress.say)
