"""Options that the subcommands of ``gnnsched partition`` share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from gnnsched.cli.progress import Progress

if TYPE_CHECKING:
    from gnnsched.partition.world import World

Profiles = Annotated[Path | None, arg(metavar="DIR")]
BoundFactor = Annotated[float | None, arg(metavar="X")]
ClusterName = Annotated[str, arg(metavar="ramp32|TOPOLOGY")]


def load(
    clusters: Sequence[str],
    profiles: Sequence[Path | None],
    ddls_units: bool,
    holdings: Sequence[Literal["faithful", "exact"]],
    bound_factor: float | None = None,
) -> "list[World]":
    """Each cluster with each of the sets of jobs, held in each of the ways; says what it does where it takes long.

    All of them are read before the first cluster is planned for.
    """
    with Progress(
        f"simulating the jobs on {', '.join(Path(name).stem for name in clusters)}", None
    ) as progress:
        progress.say("loading kernels")
        from gnnsched.partition.cases import load_cluster, load_models, time_unit
        from gnnsched.partition.world import holding_on, make_world

        models = [load_models(folder, ddls_units) for folder in profiles]
        places = [load_cluster(name, ddls_units, progress.say, bound_factor) for name in clusters]
        return [
            make_world(place, own, time_unit(ddls_units), way)
            for place in places
            for own in models
            for way in dict.fromkeys(holding_on(place, holding) for holding in holdings)
        ]
