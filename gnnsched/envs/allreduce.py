"""``AllReduceEnv``: planning an all-gather one decision at a time."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.decoder import LEFTOVER_FLOOR, Instance
from gnnsched.collective.flows import NO_FLOWS, Flows, check_flows
from gnnsched.collective.schedule import Transfers
from gnnsched.envs.event_loop import EventLoop, Network
from gnnsched.envs.flows import draw_flows
from gnnsched.envs.observation import Observation, Observer
from gnnsched.topology import InputError, Topology
from gnnsched.topology.formats import load_topology
from gnnsched.topology.generators import bcube


class AllReduceEnv(gymnasium.Env[Observation, NDArray[np.int64]]):
    """Grows the flow trees of all chunks outward from their roots: the broadcast half of an AllReduce.

    The reduce half is its mirror image (``collective.mirror``), so an episode plans both. n nodes, m directed
    links, S servers, C chunks (``chunks_per_server`` rooted at each participant; chunk c at participant
    c // chunks_per_server), P candidate paths (``collective.decode.paths``), F = ``most_flows``.

    **Decisions.** At each event (a link is released or a chunk arrives) the agent serves idle paths one after
    the other; time stands still meanwhile. An action is a pair [path, chunk] of ``MultiDiscrete([P, C +
    1])``: the low level picks an idle path, the high level the chunk whose flow tree grows over it, i.e. the
    reduction subgroup that the path's target joins; chunk C means **none**: the path stays idle until the
    next event. A path is served or declined at most once per event. A transfer starts when its path opens: at
    the path's ordinary rate (its smallest bandwidth) at the earliest moment of the decision window at which
    all its links have that left, otherwise at the earliest at which they have ``floor`` of it left, at what
    is left; and not before the chunk has arrived at the source. Links are booked conservatively: a booking
    counts from now until its end, also where it begins later. When no legal path is left, the environment
    goes on to the next event by itself, and past events that have none. Where everything was declined and
    nothing is in flight, the event is repeated **forced**: none is not allowed.

    **Masks.** ``info["action_mask"]``, like ``observation["path_mask"]``: paths (P,) int8 that may be picked
    now. ``chunk_mask(path)``: int8 (C + 1,), what may be sent over it now, none last. ``action_masks()``:
    (P, C + 1). Within an event masks only shrink. An action outside them is a no-op: no time passes, nothing
    changes, ``info["illegal"]`` is true, reward 0; it counts against ``max_steps``. Something that is no pair
    of integers within the action space raises InputError.

    **Observation.** Dict of arrays whose shapes depend on the topology and C alone. Bandwidths are relative
    to the mean, times to the all-gather bound. Node indices only say how the graph hangs together.

    * the network: ``node_is_switch``, ``node_is_participant`` (n,); ``link_source``, ``link_target``,
      ``link_bandwidth``, ``link_latency`` (m,); ``server_node`` (S,): node of each server; ``path_source``,
      ``path_target`` (P,): server numbers; ``path_links`` (P, longest): links in travel order, then -1;
    * ``link_left`` (m,): share of the bandwidth that is not booked; ``path_rate`` (P,): rate at which each
      useful path could start now, as a share of its ordinary rate, 0 if it cannot; ``path_wait`` (P,): how
      long from now;
    * ``status`` (S, C): 0 not held, 1 awaited, 2 held (has arrived or will within the decision window);
      ``arrives_in`` (S, C): time until it does;
    * ``flow_links`` (F, m) 0/1, ``flow_rate`` (F,) as a share of its slowest link, ``flow_starts_in`` and
      ``flow_time_left`` (F,): in-flight flows, rows of zeros where there are fewer;
    * ``path_mask`` (P,); ``forced``, ``progress`` (share of deliveries decided), ``time``, each (1,).

    **Reward.** Minus the time that passed, over the all-gather bound; the last step also pays for the time
    until the last arrival. The return of a finished episode is -(makespan / bound).

    **End.** Terminated when every participant has or awaits every chunk; then ``info["makespan"]`` (s) is
    there and ``transfers()`` is a whole plan. Truncated, with ``info["truncated_because"]``, after
    ``max_steps`` steps, or where no path can be served and nothing is pending any more. The default limit is
    one that legal actions cannot reach.

    **In-flight flows** take their rate of their links from their start until their bytes are through: those given to
    the constructor, or for one episode by ``reset(options={"flows": Flows | None})``; or random ones, with
    probability ``random_flows`` at each reset without that option.

    **Determinism.** The only chance is in random flows, drawn from ``np_random``: resets after one
    ``reset(seed=...)`` are the same sequence in every process, and an episode is determined by its flows and
    actions.

    **Many at once.** Environments of one topology and C batch in ``gymnasium.vector`` (set ``autoreset_mode``
    explicitly: by default the step after the last one is a reset with a meaningless action). Networks of
    different size have different spaces, which vector environments refuse: step them one by one, or use the
    compiled loop, ``collective.decode.Instance.decode``, of which this class is the plain reference.

    ``topology``: a Topology or a file; default BCube(2,1). ``window``: decision window in longest path
    latencies. ``floor``: least share of its ordinary rate at which a transfer may start (above 1: no leftover
    rates). Raises InputError for arguments that make no episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's declaration)

    def __init__(
        self,
        topology: Topology | str | None = None,
        message_bytes: float = float(1 << 26),
        chunks_per_server: int = 1,
        flows: Flows = NO_FLOWS,
        random_flows: float = 0.0,
        most_flows: int = 4,
        window: float = 3.0,
        floor: float = LEFTOVER_FLOOR,
        max_steps: int | None = None,
    ) -> None:
        if topology is None:
            topology = bcube(2, 1)
        elif isinstance(topology, str):
            topology = load_topology(topology)
        if len(topology.participants) < 2:
            raise InputError(
                f"topology {topology.name}: fewer than two participants; nothing is to be planned"
            )
        if not (np.isfinite(message_bytes) and message_bytes > 0):
            raise InputError(f"message_bytes: {message_bytes}; give a positive number of bytes")
        if not 0.0 <= random_flows <= 1.0:
            raise InputError(f"random_flows: {random_flows} is no probability; give one from 0 to 1")
        if window < 0.0 or not np.isfinite(window):
            raise InputError(f"window: {window}; give a finite number from 0 on")
        if not floor > 0.0:
            raise InputError(f"floor: {floor}; give a share above 0")
        if most_flows < 1:
            raise InputError(f"most_flows: {most_flows}; give at least 1")
        self.topology = topology
        self.message_bytes = float(message_bytes)
        self.instance = Instance(topology, self.message_bytes, chunks_per_server)
        self.bound = all_gather_bound(topology, self.message_bytes)
        paths, problem = self.instance.paths, self.instance.problem
        packed = problem.tree_path >= 0
        network = Network(
            paths,
            topology.bandwidth,
            self.instance.roots,
            self.instance.participants,
            self.instance.participants[:, None] | packed,
            self.instance.chunk_bytes,
            self.instance.decision_window(window),
            floor,
            1e-10 * self.instance.time_scale,
        )
        self._network = network
        self._none = len(network.roots)
        self._most_flows = most_flows
        self._random_flows = random_flows
        self._flows = flows
        self._check(flows)
        self._observer = Observer(topology, network, most_flows, self.bound)
        self.observation_space = self._observer.space()  # type: ignore[assignment]
        self.action_space = spaces.MultiDiscrete([paths.num_paths, self._none + 1])
        # Each event has a moment of its own: a release per link of a transfer, its arrival, the end of a
        # flow, or nothing at all before a forced event; and each takes at most one decision per path.
        longest = int(np.diff(paths.start).max())
        events = network.useful.size * (longest + 2) + most_flows + 1
        self.max_steps = paths.num_paths * events if max_steps is None else max_steps
        self._ended = True
        self._mask = np.zeros(paths.num_paths, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; ``options={"flows": Flows | None}`` sets its in-flight flows."""
        super().reset(seed=seed)
        options = {} if options is None else options
        unknown = sorted(set(options) - {"flows"})
        if unknown:
            raise InputError(f'reset: unknown option "{unknown[0]}"; the only one is "flows"')
        if "flows" in options:
            self.flows = NO_FLOWS if options["flows"] is None else options["flows"]
            self._check(self.flows)
        elif self._random_flows and self.np_random.random() < self._random_flows:
            self.flows = draw_flows(
                self.topology, self._network.paths, self._most_flows, self.bound, self.np_random
            )
        else:
            self.flows = self._flows
        self.loop = EventLoop(self._network, self.flows)
        self._observer.begin(self.loop, self.flows)
        self._steps = 0
        self._ended = False
        stuck = not self._to_next_decision()
        if stuck:
            raise InputError(f"topology {self.topology.name}: no path can be served; add the missing links")
        return self._observer.look(self.loop, self._mask), self._info()

    def step(self, action: NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one decision; see the class."""
        if self._ended:
            raise InputError("step: the episode has ended; call reset first")
        path, chunk = self._parse(action)
        loop = self.loop
        before = loop.now
        self._steps += 1
        legal = self._mask[path] and self.chunk_mask(path)[chunk]
        stuck = False
        if legal:
            if chunk == self._none:
                loop.decline(path)
            else:
                loop.serve(path, chunk)
            stuck = loop.missing > 0 and not self._to_next_decision()
        terminated = loop.missing == 0
        until = loop.makespan if terminated else loop.now
        reward = -(until - before) / self.bound
        info: dict[str, Any] = {}
        if terminated:
            self._mask = loop.path_mask()
            info["makespan"] = loop.makespan
        elif stuck:
            info["truncated_because"] = "no path can be served and nothing is pending"
        elif self._steps >= self.max_steps:
            info["truncated_because"] = f"step limit of {self.max_steps} reached"
        truncated = "truncated_because" in info
        self._ended = terminated or truncated
        info = self._info() | {"illegal": not legal} | info
        return self._observer.look(loop, self._mask), reward, terminated, truncated, info

    def chunk_mask(self, path: int) -> NDArray[np.int8]:
        """int8 (C + 1,): what may be sent over ``path`` now, none last; 0 where it may not be picked."""
        mask = np.zeros(self._none + 1, np.int8)
        if self._mask[path]:
            mask[:-1] = self.loop.chunk_mask(path)
            mask[-1] = not self.loop.forced
        return mask

    def action_masks(self) -> NDArray[np.int8]:
        """int8 (P, C + 1): all legal actions."""
        return np.stack([self.chunk_mask(path) for path in range(len(self._mask))])

    def transfers(self) -> Transfers:
        """The transfers decided so far, as broadcast columns in order of their start."""
        return self.loop.columns()

    def _to_next_decision(self) -> bool:
        self._mask = self.loop.path_mask()
        while not self._mask.any():
            if not self.loop.advance():
                return False
            self._mask = self.loop.path_mask()
        return True

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask.astype(np.int8), "event": self.loop.event, "now": self.loop.now}

    def _parse(self, action: NDArray[np.int64]) -> tuple[int, int]:
        pair = np.asarray(action)
        if pair.shape != (2,) or pair.dtype.kind not in "iu":
            raise InputError(f"action {action!r}: no pair of integers; give [path, chunk]")
        path, chunk = int(pair[0]), int(pair[1])
        if not (0 <= path < len(self._mask) and 0 <= chunk <= self._none):
            raise InputError(
                f"action [{path}, {chunk}]: outside {len(self._mask)} paths and {self._none} chunks; "
                "take one of the action space"
            )
        return path, chunk

    def _check(self, flows: Flows) -> None:
        check_flows(self.topology, flows)
        if len(flows.rate) > self._most_flows:
            raise InputError(
                f"flows: {len(flows.rate)} of them, the observation has room for {self._most_flows}; "
                "raise most_flows"
            )
