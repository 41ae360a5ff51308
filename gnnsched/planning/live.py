"""A plan that runs, and takes what happens on the network one event at a time."""

from typing import TYPE_CHECKING

import numpy as np

from gnnsched.collective.flows import on_links
from gnnsched.collective.schedule import Schedule
from gnnsched.planning.replan import Failure, links_between, replan
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy


class LivePlan:
    """A running AllReduce for a controller: ``schedule`` is the plan as it stands, past transfers included.

    Each event plans what is left anew, from its moment on, and leaves everything as it was where it raises InputError:
    the network is cut, or a contribution lost. Events come in the order of their moments (s, from the AllReduce's
    beginning). What happened to links stays among the schedule's in-flight flows: a dead one is taken without end.
    """

    def __init__(
        self,
        schedule: Schedule,
        scheduler: str = "greedy_augmented",
        policy: "Policy | None" = None,
        samples: int = 1,
        seed: int = 0,
        exclude_lost: bool = False,
    ) -> None:
        """``exclude_lost``: go on without what failed servers take with them, instead of an error."""
        self.schedule = schedule
        self.moment = 0.0
        self._how = (scheduler, policy, samples, seed)
        self._exclude_lost = exclude_lost

    @property
    def topology(self) -> Topology:
        return self.schedule.topology

    def link_down(self, moment: float, source: int, target: int, one_way: bool = False) -> Schedule:
        """All parallel cables between two nodes (indices) fail, in both directions unless ``one_way``."""
        links = links_between(self.topology, source, target, one_way)
        return self._replanned(moment, self.schedule, links, ())

    def link_up(self, moment: float, source: int, target: int, one_way: bool = False) -> Schedule:
        """The cables between two nodes are as at the beginning again."""
        links = links_between(self.topology, source, target, one_way)
        return self._replanned(moment, self._changed(moment, links, None), (), ())

    def bandwidth_changed(
        self, moment: float, source: int, target: int, bandwidth: float, one_way: bool = False
    ) -> Schedule:
        """Each cable between two nodes has ``bandwidth`` (bytes/s) from now on, at most what it began with.

        What is under way at more than that is given up and sent again.
        """
        links = links_between(self.topology, source, target, one_way)
        least = float(self.topology.bandwidth[list(links)].min())
        if not 0.0 < bandwidth <= least:
            raise InputError(
                f"bandwidth: {bandwidth} bytes/s is not above 0 and at most the link's {least} bytes/s; "
                "use link_down for a link without any"
            )
        return self._replanned(moment, self._changed(moment, links, bandwidth), (), (), links)

    def server_lost(self, moment: float, server: int) -> Schedule:
        """A server (node index) and all its links fail."""
        if self.topology.is_switch[server]:
            raise InputError(
                f"server: {self.topology.node_ids[server]!r} is a switch; use link_down for its links"
            )
        return self._replanned(moment, self.schedule, (), (server,))

    def _replanned(
        self,
        moment: float,
        schedule: Schedule,
        links: tuple[int, ...],
        servers: tuple[int, ...],
        slower: tuple[int, ...] = (),
    ) -> Schedule:
        if moment < self.moment:
            raise InputError(f"event at {moment} s: the last one was at {self.moment} s; tell them in order")
        failure = Failure(moment, links, servers, self._exclude_lost, slower)
        self.schedule = replan(schedule, failure, *self._how)
        self.moment = moment
        return self.schedule

    def _changed(self, moment: float, links: tuple[int, ...], bandwidth: float | None) -> Schedule:
        """The schedule with other endless flows on ``links`` from ``moment`` on: those that leave ``bandwidth``."""
        flows = self.schedule.flows
        crossing = flows.crossing
        ours = np.isin(flows.links, links) & (flows.until[crossing] == np.inf)
        until = np.where(ours, moment, flows.until[crossing])
        since, rate, on = flows.since[crossing], flows.rate[crossing], flows.links
        if bandwidth is not None:
            some = np.array(links)
            missing = self.topology.bandwidth[some] - bandwidth
            some, missing = some[missing > 0.0], missing[missing > 0.0]
            on, rate = np.concatenate((on, some)), np.concatenate((rate, missing))
            since = np.concatenate((since, np.full(len(some), moment)))
            until = np.concatenate((until, np.full(len(some), np.inf)))
        kept = until > since
        return Schedule(
            self.topology,
            self.schedule.message_bytes,
            self.schedule.roots,
            self.schedule.transfers,
            self.schedule.planner,
            on_links(on[kept], rate[kept], since[kept], until[kept]),
            self.schedule.ready,
            self.schedule.lost,
        )
