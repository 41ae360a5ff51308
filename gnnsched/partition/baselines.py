"""Policies without learning, by name: the published ones, constant degrees, and per-job rules."""

import re

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition import kernel
from gnnsched.partition.episode import Outcome
from gnnsched.partition.workload import Arrivals
from gnnsched.partition.world import World
from gnnsched.topology.errors import InputError, nearest, shown

# SiP-ML's fixed cap in the published comparison.
SIP_ML_CAP = 8
_NAMED = {
    "max": (kernel.MAX, 0),
    "acceptable": (kernel.ACCEPTABLE, 0),
    "random": (kernel.RANDOM, 0),
    "sip_ml": (kernel.CAP, SIP_ML_CAP),
    "none": (kernel.CAP, 1),
    "smallest_fit": (kernel.SMALLEST_FIT, 0),
    "rule": (kernel.RULE, 0),
}
_CONSTANT = re.compile(r"constant_(\d+)")


def baseline_names(world: World) -> list[str]:
    """All baselines that need no tuning: the named ones and a constant for each degree of the cluster."""
    return [*(name for name in _NAMED if name != "rule"), *(f"constant_{d}" for d in world.tables.degree)]


def check_name(name: str) -> None:
    """Raise InputError for what is no baseline's name on any cluster."""
    if name not in _NAMED and _CONSTANT.fullmatch(name) is None:
        near = nearest(name, (*_NAMED, "constant_4", "learned", "learned_lookahead"))
        cure = f"did you mean {near}?" if near else "one of learned, " + ", ".join(_NAMED) + ", constant_4"
        raise InputError(f"policy {shown(name)}: unknown; {cure}")


def check_baseline(name: str, world: World) -> None:
    """Raise InputError for what is no baseline's name, or a constant that is no degree of the cluster."""
    check_name(name)
    constant = _CONSTANT.fullmatch(name)
    degrees = [str(degree) for degree in world.tables.degree]
    if constant is not None and constant[1] not in degrees:
        raise InputError(
            f"policy {shown(name)}: {world.cluster.name} has no block of that size; one of constant_"
            + ", constant_".join(degrees)
        )


def run_baseline(
    world: World,
    arrivals: Arrivals,
    name: str,
    rng: np.random.Generator,
    rule: NDArray[np.int64] | None = None,
) -> Outcome:
    """One episode of the baseline ``name``; ``rng`` is drawn from by ``random`` alone.

    * ``max``, ``none``: the largest legal degree; 1. Legal is a degree of at most as many workers as are free.
    * ``acceptable``: the smallest legal degree of at least 1 / beta, else the largest legal one.
    * ``random``: any legal degree. ``sip_ml``, ``constant_N``: the largest legal degree of at most 8, N.
    * ``smallest_fit``: the smallest degree that can be placed and meets the limit; refuses where there is none.
    * ``rule``: see ``tuning.tune_rule``, which finds its parameters ``rule``.

    Raises InputError for another name.
    """
    check_baseline(name, world)
    constant = _CONSTANT.fullmatch(name)
    if constant is not None:
        kind, number = kernel.CAP, int(constant[1])
    else:
        kind, number = _NAMED[name]
    parameter = np.array([number], np.int64)
    if kind == kernel.RULE:
        if rule is None:
            raise ValueError("rule: needs its tuned parameters")
        parameter = rule
    outcome = Outcome.empty(len(arrivals))
    chance = rng.random(len(arrivals)) if kind == kernel.RANDOM else np.zeros(len(arrivals))
    kernel.run_baseline(
        world.tables,
        kind,
        parameter,
        arrivals.model,
        arrivals.beta,
        chance,
        arrivals.interarrival,
        outcome,
    )
    return outcome
