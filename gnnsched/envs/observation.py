"""What an agent sees of the event loop: relative quantities in arrays of fixed shape, no node ids."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gnnsched.collective.flows import Flows
from gnnsched.envs.event_loop import EventLoop, Network
from gnnsched.topology import Topology

Observation = dict[str, NDArray[Any]]

NOT_HELD, AWAITED, HELD = 0, 1, 2


class Observer:
    """Turns the loop's state into the observation that ``AllReduceEnv`` documents."""

    def __init__(self, topology: Topology, network: Network, most_flows: int, bound: float) -> None:
        self._topology = topology
        self._network = network
        self._bound = bound
        self._most_flows = most_flows
        paths = network.paths
        self._longest = int(np.diff(paths.start).max())
        path_links = np.full((paths.num_paths, self._longest), -1, np.int32)
        for p in range(paths.num_paths):
            hops = paths.links[paths.start[p] : paths.start[p + 1]]
            path_links[p, : len(hops)] = hops
        bandwidth = topology.bandwidth / topology.bandwidth.mean()
        self._fixed: Observation = {
            "node_is_switch": topology.is_switch.astype(np.int8),
            "node_is_participant": topology.is_participant.astype(np.int8),
            "link_source": topology.link_source.astype(np.int32),
            "link_target": topology.link_target.astype(np.int32),
            "link_bandwidth": bandwidth.astype(np.float32),
            "link_latency": (topology.latency / bound).astype(np.float32),
            "server_node": paths.nodes.astype(np.int32),
            "path_source": paths.source.astype(np.int32),
            "path_target": paths.target.astype(np.int32),
            "path_links": path_links,
        }

    def space(self) -> spaces.Dict:
        """The observation space; see ``AllReduceEnv``."""
        n, m = self._topology.num_nodes, self._topology.num_links
        servers, chunks = self._network.useful.shape
        paths, flows, longest = self._network.paths.num_paths, self._most_flows, self._longest

        def whole(shape: tuple[int, ...], low: int, high: int, kind: type = np.int8) -> spaces.Box:
            return spaces.Box(low, high, shape, kind)

        def real(shape: tuple[int, ...], high: float = np.inf) -> spaces.Box:
            return spaces.Box(0.0, high, shape, np.float32)

        return spaces.Dict(
            {
                "node_is_switch": whole((n,), 0, 1),
                "node_is_participant": whole((n,), 0, 1),
                "link_source": whole((m,), 0, n - 1, np.int32),
                "link_target": whole((m,), 0, n - 1, np.int32),
                "link_bandwidth": real((m,)),
                "link_latency": real((m,)),
                "server_node": whole((servers,), 0, n - 1, np.int32),
                "path_source": whole((paths,), 0, servers - 1, np.int32),
                "path_target": whole((paths,), 0, servers - 1, np.int32),
                "path_links": whole((paths, longest), -1, m - 1, np.int32),
                "link_left": real((m,), 1.0),
                "status": whole((servers, chunks), NOT_HELD, HELD),
                "arrives_in": real((servers, chunks)),
                "path_mask": whole((paths,), 0, 1),
                "path_rate": real((paths,), 1.0),
                "path_wait": real((paths,)),
                "flow_links": whole((flows, m), 0, 1),
                "flow_rate": real((flows,), 1.0),
                "flow_time_left": real((flows,)),
                "flow_starts_in": real((flows,)),
                "forced": whole((1,), 0, 1),
                "progress": real((1,), 1.0),
                "time": real((1,)),
            }
        )

    def begin(self, loop: EventLoop, flows: Flows) -> None:
        """Note what stays fixed in the episode."""
        m = self._topology.num_links
        count = len(flows.rate)
        self._links = np.zeros((self._most_flows, m), np.int8)
        self._rate = np.zeros(self._most_flows, np.float32)
        self._since = np.zeros(self._most_flows)
        self._until = np.zeros(self._most_flows)
        for i in range(count):
            hops = flows.links[flows.start[i] : flows.start[i + 1]]
            self._links[i, hops] = 1
            self._rate[i] = min(1.0, flows.rate[i] / self._topology.bandwidth[hops].min())
        self._since[:count] = flows.since
        self._until[:count] = flows.until
        self._initially_missing = max(1, loop.missing)

    def look(self, loop: EventLoop, mask: NDArray[np.bool_]) -> Observation:
        """The observation of this moment; ``mask`` is the loop's path mask."""
        bandwidth = self._topology.bandwidth
        left = np.ones(len(bandwidth), np.float32)
        for link in range(len(bandwidth)):
            left[link] = max(0.0, loop.left(link, loop.now, loop.now) / bandwidth[link])
        coming = np.isfinite(loop.arrival)
        arrives_in = np.maximum(np.where(coming, loop.arrival, loop.now) - loop.now, 0.0)
        flow_left = np.maximum(self._until - loop.now, 0.0)
        return {name: array.copy() for name, array in self._fixed.items()} | {
            "link_left": left,
            "status": np.where(loop.holds, HELD, np.where(coming, AWAITED, NOT_HELD)).astype(np.int8),
            "arrives_in": (arrives_in / self._bound).astype(np.float32),
            "path_mask": mask.astype(np.int8),
            "path_rate": np.minimum(loop.rate / self._network.paths.rate, 1.0).astype(np.float32),
            "path_wait": ((loop.start - loop.now) / self._bound).astype(np.float32),
            "flow_links": self._links.copy(),
            "flow_rate": np.where(flow_left > 0.0, self._rate, 0.0).astype(np.float32),
            "flow_time_left": (flow_left / self._bound).astype(np.float32),
            "flow_starts_in": (np.maximum(self._since - loop.now, 0.0) / self._bound).astype(np.float32),
            "forced": np.array([loop.forced], np.int8),
            "progress": np.array([1.0 - loop.missing / self._initially_missing], np.float32),
            "time": np.array([loop.now / self._bound], np.float32),
        }
