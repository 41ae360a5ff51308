"""Clusters and jobs by name, as the command line takes them."""

import os
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from gnnsched.partition.cluster import Cluster
from gnnsched.partition.job_graph import JobGraph, mirrored
from gnnsched.partition.profile_file import MILLISECONDS, read_profile
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.topology_cluster import TopologyCluster
from gnnsched.partition.world import Holding, World, make_world
from gnnsched.partition.zoo import SHIPPED
from gnnsched.topology.errors import InputError, shown
from gnnsched.topology.formats import load_topology

# What the published program takes a profile's unit of time for.
SECONDS = 1.0
# Groups, racks and servers per rack of the RAMP clusters of the published configurations, by number of workers.
RAMPS = {8: (2, 2, 2), 16: (2, 2, 4), 32: (4, 4, 2), 64: (4, 4, 4), 128: (4, 4, 8), 512: (8, 8, 8)}


def time_unit(ddls_units: bool) -> float:
    """Seconds of a unit of the profiles' time: a millisecond, or a second as in the published program."""
    return SECONDS if ddls_units else MILLISECONDS


def load_models(folder: str | os.PathLike[str] | None, ddls_units: bool = False) -> list[JobGraph]:
    """The jobs of the profiles (.txt) in ``folder``, by name, or the five shipped ones.

    Raises InputError where there is no profile, or a bad one.
    """
    unit = time_unit(ddls_units)
    if folder is None:
        shipped = files("gnnsched.partition") / "data" / "profiles"
        return [mirrored(read_profile(Path(str(shipped / f"{name}.txt")), unit)) for name in SHIPPED]
    place = Path(folder)
    if not os.path.isdir(place):
        raise InputError(f"{place}: no such folder; name one that holds profiles (.txt)")
    # A licence may lie beside the profiles.
    found = [path for path in sorted(place.glob("*.txt")) if not path.stem.upper().startswith("LICENSE")]
    if not found:
        raise InputError(f"{place}: no profile (.txt) in it; name a folder that holds some")
    return [mirrored(read_profile(path, unit)) for path in found]


def load_cluster(
    name: str,
    ddls_units: bool = False,
    progress: Callable[[str], None] | None = None,
    bound_factor: float | None = None,
) -> Cluster:
    """``ramp8`` ... ``ramp512``, or the topology in the file ``name``.

    ``bound_factor``: on a topology, the time of an AllReduce as a multiple of its bound instead of a plan's. Raises
    InputError for what is neither, and for a factor that makes no sense.
    """
    if bound_factor is not None and not 1.0 <= bound_factor < float("inf"):
        raise InputError(f"bound factor: {bound_factor:g} is below 1 or no number; give one such as 1.1")
    ramp = re.fullmatch(r"ramp(\d{1,9})", name)
    if ramp is not None:
        workers = int(ramp[1])
        if workers not in RAMPS:
            raise InputError(
                f"cluster {shown(name)}: unknown size; one of " + ", ".join(f"ramp{n}" for n in RAMPS)
            )
        if bound_factor is not None:
            raise InputError(f"cluster {name}: has a formula of its own, no bound; drop the bound factor")
        groups, racks, servers = RAMPS[workers]
        return Ramp(groups, racks, servers, published=ddls_units)
    if not os.path.exists(name):
        raise InputError(f"cluster {shown(name)}: no such file; name a topology file or ramp32")
    return TopologyCluster(load_topology(name), factor=bound_factor, progress=progress)


def load_world(
    cluster: str,
    profiles: str | os.PathLike[str] | None,
    ddls_units: bool = False,
    holding: Holding = "faithful",
    bound_factor: float | None = None,
) -> World:
    """Cluster and jobs, with every job simulated at every degree."""
    models: Sequence[JobGraph] = load_models(profiles, ddls_units)
    place = load_cluster(cluster, ddls_units, bound_factor=bound_factor)
    return make_world(place, models, time_unit(ddls_units), holding)
