"""``JobPartitioningEnv``: how far to partition each arriving training job, one decision per job."""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gnnsched.partition.cases import load_world
from gnnsched.partition.cluster import MAX_DEGREE
from gnnsched.partition.features import FEATURES, no_choices, observe, see
from gnnsched.partition.kernel import take
from gnnsched.partition.observation import (
    EDGE_FEATURES,
    GRAPH_FEATURES,
    NODE_FEATURES,
    Pool,
    edge_features,
    node_features,
)
from gnnsched.partition.workload import (
    ARRIVALS,
    INTERARRIVAL,
    Arrivals,
    Betas,
    beta_distribution,
    draw_arrivals,
    in_time,
)
from gnnsched.partition.world import World
from gnnsched.topology.errors import InputError

Observation = dict[str, NDArray[Any]]
# Times, in arrivals, and other numbers that have no natural end are cut off here.
MOST = 64.0


class JobPartitioningEnv(gymnasium.Env[Observation, np.int64]):
    """Training jobs arrive one at a time; each is partitioned, placed and accepted, or blocked for good.

    A job must be done within beta times its time on one worker. N workers; an accepted job holds some of them for its
    whole time and is never pre-empted. Nothing waits: a job that is not accepted on arrival is gone. After arXiv
    2301.13799.

    **Action.** ``Discrete(17)``: the degree up to which the job's ops are split, 0 to refuse it.

    **Mask.** ``observation["action_mask"]`` and ``info["action_mask"]``, int8 (17,): 0 is always legal; a degree
    where the job can be placed now and would meet its limit. An illegal action counts as 0, and ``info["illegal"]``
    is then true. Something that is no integer within the action space raises InputError.

    **Observation.** Dict; graphs are padded to the largest of the pool's, with V ops and E edges:

    * ``nodes`` (V, 5), ``edges`` (E, 2), ``edge_index`` (2, E): the job's whole graph, see ``observation``;
      ``node_count``, ``edge_count`` (1,): how many of them are real;
    * ``graph`` (17,): the published summary of job and cluster;
    * ``worker_free_in`` (N,): time until each worker is free over that between two arrivals, 0 for a free one, at
      most 64; ``worker_free`` (N,), int8;
    * ``choices`` (17, features): what the cluster would be after each action, see ``features``; rows of illegal
      actions are zero;
    * ``action_mask`` (17,).

    **Reward.** +1 for a job that is accepted and done by the horizon, else -1. ``info["jct"]``: seconds of the job
    just accepted, 0 where it was blocked.

    **End.** Terminated after the last arrival.

    **Determinism.** Arrivals are drawn from ``np_random`` at a reset; an episode is determined by them and the
    actions.

    ``cluster``: ramp8 ... ramp512 or a topology file; ``profiles``: folder of the jobs' profiles, None for the shipped
    models; ``distribution``: of the limits, A to D; ``arrivals``: jobs per episode; ``interarrival``: in units of the
    profiles' time; ``bound_factor``: on a topology, the time of an AllReduce as a multiple of its bound instead of a
    plan's, which may take minutes to make; ``world``: instead of all that say what cluster and jobs there are. Raises
    InputError for arguments that make no episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's declaration)

    def __init__(
        self,
        cluster: str = "ramp32",
        profiles: str | None = None,
        ddls_units: bool = False,
        holding: Literal["faithful", "exact"] = "faithful",
        distribution: str = "A",
        arrivals: int = ARRIVALS,
        interarrival: float = INTERARRIVAL,
        bound_factor: float | None = None,
        world: World | None = None,
    ) -> None:
        self._betas: Betas = beta_distribution(distribution)
        if not isinstance(arrivals, int) or arrivals < 1:
            raise InputError(f"arrivals: {arrivals!r}; give a whole number of jobs, at least 1")
        if not 0.0 < interarrival < float("inf"):
            raise InputError(f"interarrival: {interarrival!r}; give a positive, finite time")
        if holding not in ("faithful", "exact"):
            raise InputError(f"holding: {holding!r}; give faithful or exact")
        self.world = world or load_world(cluster, profiles, ddls_units, holding, bound_factor)
        self._count, self._interarrival = arrivals, interarrival
        models = self.world.models
        self._pool = Pool(models)
        most_nodes = max(model.num_ops for model in models)
        most_edges = max(len(model.edges) for model in models)
        self._graphs = [self._padded(m, most_nodes, most_edges) for m in range(len(models))]
        actions, workers = MAX_DEGREE + 1, self.world.tables.workers

        def box(low: float, high: float, shape: tuple[int, ...], kind: type = np.float32) -> spaces.Box:
            return spaces.Box(low, high, shape, kind)

        self.action_space = spaces.Discrete(actions)
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]
            {
                "nodes": box(0, 1, (most_nodes, len(NODE_FEATURES))),
                "edges": box(0, 1, (most_edges, len(EDGE_FEATURES))),
                "edge_index": box(0, most_nodes - 1, (2, most_edges), np.int64),
                "node_count": box(0, most_nodes, (1,), np.int64),
                "edge_count": box(0, most_edges, (1,), np.int64),
                "graph": box(0, 1, (len(GRAPH_FEATURES),)),
                "worker_free_in": box(0, MOST, (workers,)),
                "worker_free": box(0, 1, (workers,), np.int8),
                "choices": box(0, MOST, (actions, len(FEATURES))),
                "action_mask": box(0, 1, (actions,), np.int8),
            }
        )
        self._choices = no_choices(self.world.tables)
        self._release = np.zeros(workers)
        self._seen, self._seen_before = np.zeros(4), np.zeros(4)
        self._ends: list[float] = []
        self._at = 0
        self._arrivals: Arrivals | None = None

    def _padded(self, model: int, most_nodes: int, most_edges: int) -> Observation:
        graph = self.world.models[model]
        missing_nodes, missing_edges = most_nodes - graph.num_ops, most_edges - len(graph.edges)
        return {
            "nodes": np.pad(node_features(graph), ((0, missing_nodes), (0, 0))),
            "edges": np.pad(edge_features(graph), ((0, missing_edges), (0, 0))),
            "edge_index": np.pad(graph.edges.T, ((0, 0), (0, missing_edges))),
            "node_count": np.array([graph.num_ops], np.int64),
            "edge_count": np.array([len(graph.edges)], np.int64),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """An empty cluster and new arrivals."""
        super().reset(seed=seed)
        self._arrivals = draw_arrivals(
            len(self.world.models),
            self._betas,
            self.np_random,
            self.world.time_unit,
            self._count,
            self._interarrival,
        )
        self._release[:], self._seen[:], self._at, self._ends = 0.0, 0.0, 0, []
        return self._look(self._arrivals)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide about the job at hand."""
        arrivals = self._arrivals
        if arrivals is None or self._at >= len(arrivals):
            raise InputError("step: the episode is over or has not begun; call reset first")
        if not self.action_space.contains(action):
            raise InputError(f"action {action!r}: give an integer from 0 to {MAX_DEGREE}")
        row = self._row_of(int(action))
        legal = row is not None and bool(self._choices.mask[row])
        now = self._at * arrivals.interarrival
        jct, _ = take(
            self.world.tables,
            self._release,
            now,
            int(arrivals.model[self._at]),
            float(arrivals.beta[self._at]),
            row if row is not None and legal else 0,
            self._choices.held,
        )
        accepted = jct > 0.0 and in_time(now + jct, arrivals.horizon)
        if jct > 0.0:
            self._ends.append(now + jct)
        self._at += 1
        over = self._at >= len(arrivals)
        if over:
            # The last observation is of the same job: there is no other.
            self._at -= 1
            self._seen[:] = self._seen_before
        observation, info = self._look(arrivals)
        self._at += over
        info |= {"illegal": not legal, "jct": jct if accepted else 0.0}
        return observation, 1.0 if accepted else -1.0, over, False, info

    def _row_of(self, degree: int) -> int | None:
        """The row of the choices that stands for ``degree``; None where the cluster has no block of that size."""
        if degree == 0:
            return 0
        found = np.flatnonzero(self.world.tables.degree == degree)
        return int(found[0]) + 1 if len(found) else None

    def _look(self, arrivals: Arrivals) -> tuple[Observation, dict[str, Any]]:
        tables, choices = self.world.tables, self._choices
        now = self._at * arrivals.interarrival
        model, beta = int(arrivals.model[self._at]), float(arrivals.beta[self._at])
        self._seen_before = self._seen.copy()
        see(self._seen, beta, tables.sequential[model])
        observe(
            tables,
            self._release,
            now,
            model,
            beta,
            self._seen,
            arrivals.interarrival,
            arrivals.horizon,
            choices,
        )
        rows = np.concatenate(([0], tables.degree))
        shown = np.zeros((MAX_DEGREE + 1, len(FEATURES)), np.float32)
        mask = np.zeros(MAX_DEGREE + 1, np.int8)
        shown[rows], mask[rows] = np.clip(choices.rows, 0.0, MOST), choices.mask
        free_in = np.clip((self._release - now) / arrivals.interarrival, 0.0, MOST)
        self._ends = [end for end in self._ends if end > now]
        observation = {
            **{name: array.copy() for name, array in self._graphs[model].items()},
            "graph": self._pool.graph_features(
                self.world.models[model],
                beta,
                float((free_in > 0.0).mean()),
                len(self._ends) / tables.workers,
            ),
            "worker_free_in": free_in.astype(np.float32),
            "worker_free": (free_in == 0.0).astype(np.int8),
            "choices": shown,
            "action_mask": mask,
        }
        return observation, {"action_mask": mask.copy()}
