"""Planning again under way: what has been delivered stays, what cannot be used is dropped, the rest is planned anew."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from gnnsched.collective.bounds import latency_bound, rs_ag_bound
from gnnsched.collective.decode.decoder import Episode, Instance
from gnnsched.collective.decode.demand import Demand
from gnnsched.collective.decode.paths import candidate_paths, paths_of
from gnnsched.collective.flows import Flows, backwards, from_moment, join_flows, on_links
from gnnsched.collective.flows_bound import entry_bound_under
from gnnsched.collective.mirror import mirror
from gnnsched.collective.progress import Progress, progress_at
from gnnsched.collective.retiming import retime
from gnnsched.collective.schedule import Schedule, Transfers, chosen_transfers, join_transfers
from gnnsched.planning.halves import Halves, PathCache
from gnnsched.planning.schedulers import sampler_of
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

# Ways to time what is left, and those that do where a plan of one sample is asked for: somebody waits for it.
_MODES = ((True, True), (True, False), (False, False))
_QUICK_MODES = _MODES[:2]
# ... whose trees are then improved in so many rounds only.
PACKING_ROUNDS = 0


@dataclass(frozen=True)
class Failure:
    """What fails at ``moment`` (s): ``links`` and ``servers`` (node indices); ``exclude_lost``: go on without what
    servers take with them. ``slower``: links that have less bandwidth from now on, by the schedule's flows; what is
    under way there is cut.
    """

    moment: float
    links: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    exclude_lost: bool = False
    slower: tuple[int, ...] = ()


def links_between(topology: Topology, first: int, second: int, one_way: bool = False) -> tuple[int, ...]:
    """All parallel links from one node to another, and, unless ``one_way``, back. Raises InputError for none."""
    s, d = topology.link_source, topology.link_target
    found = (s == first) & (d == second)
    if not one_way:
        found |= (s == second) & (d == first)
    if not found.any():
        names = " to ".join(repr(topology.node_ids[node]) for node in (first, second))
        raise InputError(f"topology {topology.name}: there is no link from {names}; name the ends of one")
    return tuple(np.flatnonzero(found).tolist())


def replan(
    schedule: Schedule,
    failure: Failure,
    scheduler: str = "greedy_augmented",
    policy: "Policy | None" = None,
    samples: int = 1,
    seed: int = 0,
) -> Schedule:
    """``schedule`` up to the failure's moment and, from there, what is left of it on what is left of the network.

    The result is one AllReduce for ``verify``: what failed is among its flows, as taken whole without end.

    Raises InputError where the network is cut in two, and where a server takes a contribution with it for good.
    """
    progress, dead_links, lost = _state(schedule, failure)
    if progress.gone.any() and not failure.exclude_lost:
        topology = schedule.topology
        names = ", ".join(repr(topology.node_ids[node]) for node in failure.servers)
        left = len(topology.participants) - len(lost)
        raise InputError(
            f"server {names}: takes its contribution to {int(progress.gone.sum())} of {schedule.num_chunks} chunks "
            f"with it; the sum of the other {left} servers can still be made: --exclude-lost"
        )
    return _Rest(schedule, failure, progress, dead_links, lost).planned(scheduler, policy, samples, seed)


def bound_of_rest(schedule: Schedule, failure: Failure) -> tuple[int, float]:
    """Chunks that are not finished at the failure, and the least seconds of a fresh AllReduce of them on what is left.

    By reduce-scatter and then all-gather, as ``rs_ag_bound``; servers that lost their way to the others do not count.
    """
    rest = _Rest(schedule, failure, *_state(schedule, failure))
    count = len(rest.unfinished)
    seconds = rs_ag_bound(rest.network, schedule.chunk_bytes * count) if count else 0.0
    return count, max(seconds, latency_bound(rest.network)) if count and seconds < np.inf else 0.0


def _state(schedule: Schedule, failure: Failure) -> tuple[Progress, NDArray[np.bool_], tuple[int, ...]]:
    """How far the schedule has come, the links that are dead, and the participants that are lost by now."""
    topology = schedule.topology
    if not (np.isfinite(failure.moment) and failure.moment >= 0.0):
        raise InputError(f"--at: {failure.moment} s is no moment from 0 on; give one such as 1.5ms")
    dead_nodes = np.zeros(topology.num_nodes, bool)
    dead_nodes[list(failure.servers)] = True
    dead_links = dead_nodes[topology.link_source] | dead_nodes[topology.link_target]
    dead_links[list(failure.links)] = True
    cut_links = dead_links.copy()
    cut_links[list(failure.slower)] = True
    progress = progress_at(schedule, failure.moment, cut_links, dead_nodes)
    lost = tuple(sorted({*schedule.lost, *np.flatnonzero(dead_nodes & topology.is_participant).tolist()}))
    return progress, dead_links, lost


class _Rest:
    """What is left to do of a schedule after a failure, on the network that is left."""

    def __init__(
        self,
        schedule: Schedule,
        failure: Failure,
        progress: Progress,
        dead_links: NDArray[np.bool_],
        lost: tuple[int, ...],
    ) -> None:
        self.schedule, self.failure, self.progress, self.lost = schedule, failure, progress, lost
        topology = schedule.topology
        taken_whole = schedule.flows.until == np.inf
        # What flows take without end is as good as not there: dead links, and slower ones.
        endless = np.bincount(
            schedule.flows.links,
            (schedule.flows.rate * taken_whole)[schedule.flows.crossing],
            topology.num_links,
        )
        self.links = np.flatnonzero(~dead_links & (endless < topology.bandwidth * (1.0 - 1e-9)))
        self.dead = np.flatnonzero(dead_links)
        alive = topology.is_participant.copy()
        alive[list(lost)] = False
        self.alive = alive
        self.network = Topology.from_arrays(
            topology.name,
            topology.node_ids,
            topology.is_switch,
            topology.link_source[self.links],
            topology.link_target[self.links],
            (topology.bandwidth - endless)[self.links],
            topology.latency[self.links],
            alive,
        )
        self.moment = failure.moment
        final = progress.final & ~self._failed()[:, None]
        self.unfinished = np.flatnonzero((alive[:, None] & ~final).any(0))
        self.final = final[:, self.unfinished]
        self.partial = (progress.partial * ~self._failed()[:, None])[:, self.unfinished]
        self.ended: NDArray[np.bool_] = np.logical_or.reduce(self.final, axis=0)
        self.available = np.maximum(progress.since[:, self.unfinished] - self.moment, 0.0)

    def _failed(self) -> NDArray[np.bool_]:
        failed = np.zeros(self.schedule.topology.num_nodes, bool)
        failed[[*self.failure.servers, *self.lost]] = True
        return failed

    def planned(self, scheduler: str, policy: "Policy | None", samples: int, seed: int) -> Schedule:
        roots = self._roots()
        self._check_ways(roots)
        suffix = Transfers.none()
        everything = np.arange(len(self.unfinished))
        wanted = self._reduce_demand(roots, everything), self._broadcast_demand(roots, 0.0)
        if any(demand.needed.any() for demand in wanted):
            suffix = self._suffix(roots, scheduler, policy, samples, seed)
        return self._joined(roots, suffix)

    def _roots(self) -> NDArray[np.int32]:
        """Where each unfinished chunk's final value is or is to be made; node index (C',)."""
        roots = self.schedule.roots[self.unfinished].copy()
        members = np.flatnonzero(self.alive)
        if not len(members):
            raise InputError("no server is left that takes part")
        load = np.bincount(roots[self.alive[roots]], minlength=len(self.alive))
        for i in np.flatnonzero(~self.alive[roots] & ~self.ended):
            # Where most of it is already, and not too many others.
            root = members[np.lexsort((members, load[members], -self.partial[members, i]))[0]]
            roots[i] = root
            load[root] += 1
        return roots

    def _check_ways(self, roots: NDArray[np.int32]) -> None:
        """InputError where somebody cannot be reached any more."""
        network = self.network
        nodes = network.num_nodes
        graph = csr_array(
            (np.ones(network.num_links), (network.link_source, network.link_target)), shape=(nodes, nodes)
        )
        members = np.flatnonzero(self.alive)
        count, part = connected_components(graph, connection="strong")
        if count == 1 or len({*part[members].tolist(), *part[roots[~self.ended]].tolist()}) == 1:
            return
        reach = np.isfinite(shortest_path(graph, unweighted=True))
        for i in range(len(self.unfinished)):
            sources = np.flatnonzero(self.final[:, i]) if self.ended[i] else np.array([roots[i]])
            holders = np.flatnonzero(self.partial[:, i]) if not self.ended[i] else sources
            missing = members[~self.final[members, i]]
            cut = ~reach[np.ix_(sources, missing)].any(0)
            stuck = ~reach[holders, roots[i]] if not self.ended[i] else np.zeros(len(holders), bool)
            if cut.any() or stuck.any():
                sizes = np.bincount(part[members])
                outside = members[part[members] != np.argmax(sizes)].tolist() or [int(roots[i])]
                names = ", ".join(repr(network.node_ids[node]) for node in outside[:3])
                more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
                raise InputError(
                    f"topology {network.name}: the failure cuts {names}{more} off from others, one way at least; the "
                    f"largest part of the network that can still sum has {int(sizes.max())} of {len(members)} servers"
                )

    def _suffix(
        self,
        roots: NDArray[np.int32],
        scheduler: str,
        policy: "Policy | None",
        samples: int,
        seed: int,
    ) -> Transfers:
        """The transfers to come, in seconds from the failure on, of the network's own links, chunks by number there."""
        schedule, network = self.schedule, self.network
        count = len(self.unfinished)
        flows = self._flows()
        empty = Schedule(network, schedule.chunk_bytes * count, roots, Transfers.none(), {}, flows)
        per_server = max(1, round(schedule.num_chunks / len(schedule.topology.participants)))
        sampling = Halves(
            sampler_of(scheduler, policy).without_shapes(),
            schedule.chunk_bytes,
            per_server,
            samples,
            seed,
            PathCache(),
            packing_rounds=PACKING_ROUNDS if samples == 1 else None,
        )
        self._find_paths(sampling.paths, network, schedule.topology)
        modes = _MODES if samples > 1 else _QUICK_MODES

        def timed(transfers: Transfers) -> tuple[float, Schedule]:
            planned = replace(empty, transfers=transfers)
            found = (retime(planned, keep, cap, available=self.available) for keep, cap in modes)
            best = min(found, key=lambda own: own.makespan)
            return best.makespan, best

        reduced, turn = Transfers.none(), 0.0
        open_chunks = np.flatnonzero(~self.ended)
        demand = self._reduce_demand(roots, open_chunks)
        if demand.needed.any():
            opposite = network.opposite
            reverse = network
            if opposite is None:
                reverse = network.reversed()
                self._find_paths(sampling.paths, reverse, schedule.topology.reversed())

            def reduction(instance: Instance, episode: Episode) -> tuple[float, Schedule]:
                transfers = mirror(network, instance.transfers(episode.state))
                return timed(replace(transfers, chunk=open_chunks[transfers.chunk].astype(np.int32)))

            # What goes on is over soon: the plan need not know of it, its times will.
            traffic = self._mapped(schedule.flows)
            own = traffic
            if traffic.num_flows:
                entering = demand.needed.sum(1) * schedule.chunk_bytes
                own = backwards(traffic, opposite, 1.05 * entry_bound_under(reverse, entering, traffic))
            half = sampling.draw(reverse, reduction, 0.0, own, demand)
            reduced, turn = half.best.transfers, half.value

        def whole(instance: Instance, episode: Episode) -> tuple[float, Schedule]:
            broadcast = instance.transfers(episode.state)
            later = replace(broadcast, start=broadcast.start + turn, end=broadcast.end + turn)
            return timed(join_transfers(reduced, later))

        demand = self._broadcast_demand(roots, turn)
        if not demand.needed.any():
            return reduced
        after = from_moment(self._mapped(schedule.flows), turn)
        return sampling.draw(network, whole, 0.0, after, demand).best.transfers

    def _find_paths(self, cache: PathCache, network: Topology, before: Topology) -> None:
        """Candidate paths of ``network``, which is what is left of ``before``, into the cache.

        Where not all servers reach each other any more, though all reach who they must: what is left of those before.
        """
        try:
            cache.of(network)
        except InputError:
            paths = candidate_paths(before)
            number = np.full(before.num_links, -1, np.int64)
            number[self.links] = np.arange(len(self.links))
            left = number[paths.links]
            found = []
            for p, (a, b) in enumerate(pairwise(paths.start.tolist())):
                own = left[a:b].tolist()
                if min(own) >= 0:
                    found.append((int(paths.target[p]), own[-1], int(paths.source[p]), own))
            cache.put(network, paths_of(network, paths.nodes, found))

    def _flows(self) -> Flows:
        """What is in the way from the failure on: traffic and what goes on."""
        schedule = self.schedule
        going_on = self.progress.begun & ~self.progress.aborted & (schedule.transfers.end > self.moment)
        own = replace(schedule, transfers=chosen_transfers(schedule.transfers, going_on)).occupancies()
        return self._mapped(join_flows(schedule.flows, own))

    def _mapped(self, flows: Flows) -> Flows:
        """Flows from the failure on that end, link by link, on the links that are left."""
        number = np.full(self.schedule.topology.num_links, -1, np.int64)
        number[self.links] = np.arange(len(self.links))
        later = from_moment(flows, self.moment)
        left = (number[later.links] >= 0) & (later.until[later.crossing] < np.inf)
        crossing = later.crossing[left]
        return on_links(
            number[later.links[left]], later.rate[crossing], later.since[crossing], later.until[crossing]
        )

    def _reduce_demand(self, roots: NDArray[np.int32], chunks: NDArray[np.int64]) -> Demand:
        """Backwards: from the roots to where contributions wait."""
        since = np.full((self.network.num_nodes, len(chunks)), np.inf)
        since[roots[chunks], np.arange(len(chunks))] = 0.0
        return Demand(since, (self.partial[:, chunks] > 0) & ~np.isfinite(since))

    def _broadcast_demand(self, roots: NDArray[np.int32], turn: float) -> Demand:
        """From where final values are, at ``turn`` (s), to who has none."""
        final = self.final.copy()
        final[roots[~self.ended], np.flatnonzero(~self.ended)] = True
        since = np.where(final, np.maximum(self.available - turn, 0.0), np.inf)
        open_chunks = np.flatnonzero(~self.ended)
        since[roots[open_chunks], open_chunks] = 0.0
        return Demand(since, self.alive[:, None] & ~final)

    def _joined(self, roots: NDArray[np.int32], suffix: Transfers) -> Schedule:
        schedule, progress = self.schedule, self.progress
        t = schedule.transfers
        prefix = replace(
            t,
            end=np.where(progress.cut, self.moment, t.end),
            aborted=progress.aborted if progress.aborted.any() else None,
        )
        prefix = chosen_transfers(prefix, progress.begun)
        later = replace(
            suffix,
            chunk=self.unfinished[suffix.chunk].astype(np.int32),
            path_links=self.links[suffix.path_links].astype(np.int32),
            start=suffix.start + self.moment,
            end=suffix.end + self.moment,
        )
        all_roots = schedule.roots.copy()
        all_roots[self.unfinished] = roots
        flows = join_flows(schedule.flows, self._outage())
        planner = {**schedule.planner, "replanned_at_s": self.moment}
        return replace(
            schedule,
            roots=all_roots,
            transfers=join_transfers(prefix, later),
            planner=planner,
            flows=flows,
            lost=self.lost,
        )

    def _outage(self) -> Flows:
        """Dead links as flows that take all that others leave, from the failure on, without end."""
        topology, flows = self.schedule.topology, self.schedule.flows
        since = np.full(len(self.dead), self.moment)
        crossing = flows.crossing
        # What flies over a dead link counts on until it ends: the outage takes the rest.
        most = np.bincount(
            flows.links,
            flows.rate[crossing] * (flows.until[crossing] > self.moment),
            topology.num_links,
        )
        rate = (topology.bandwidth - most)[self.dead]
        some = rate > 1e-9 * topology.bandwidth[self.dead]
        return on_links(self.dead[some], rate[some], since[some], np.full(int(some.sum()), np.inf))


def node_named(topology: Topology, name: str, option: str) -> int:
    """The node whose id is written ``name``. Raises InputError for an unknown one, naming the ``option``."""
    names: Iterable[str] = map(str, topology.node_ids)
    known: Collection[str] = list(names)
    if name not in known:
        raise InputError(f"{option}: the topology has no node {name!r}; use its ids")
    return list(known).index(name)
