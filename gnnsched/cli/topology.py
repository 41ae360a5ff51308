"""``gnnsched topology``: generate networks, look at them, print the file format."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, subcommand

from gnnsched.cli.generate import Generate
from gnnsched.cli.options import NetworkFile
from gnnsched.cli.tables import counted, table

# The LP's share of a command that should answer at once (s).
LP_TIME_LIMIT_S = 2.0


@dataclass(frozen=True)
class GenerateNetwork:
    """Write a network of a known family to a file."""

    family: OmitArgPrefixes[Generate]

    def run(self) -> int:
        return self.family.run()


@dataclass(frozen=True)
class Info:
    """Counts, components, bounds and warnings of a network file."""

    topology: NetworkFile
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        facts = network_facts(self.topology)
        if self.json:
            print(json.dumps(facts, indent=2))
        else:
            print(_described(facts))
        return 0


@dataclass(frozen=True)
class Schema:
    """Print the JSON Schema of network files."""

    def run(self) -> int:
        from gnnsched.topology.formats import topology_schema

        print(json.dumps(topology_schema(), indent=2))
        return 0


@dataclass(frozen=True)
class Topology:
    """Generate network files, look at them, print their schema."""

    action: (
        Annotated[GenerateNetwork, subcommand("generate")]
        | Annotated[Info, subcommand("info")]
        | Annotated[Schema, subcommand("schema")]
    )

    def run(self) -> int:
        return self.action.run()


def network_facts(path: NetworkFile) -> dict[str, Any]:
    """What ``info --json`` prints of the network file ``path``; bandwidths in bytes/s, times in seconds."""
    from collections import Counter

    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    from gnnsched.collective.bounds import bounds
    from gnnsched.topology.formats import load_topology

    topology = load_topology(path)
    limits = bounds(topology, 1.0, LP_TIME_LIMIT_S)
    ends = (topology.link_source, topology.link_target)
    graph = csr_array((topology.bandwidth, ends), shape=(topology.num_nodes,) * 2)
    speeds = Counter(zip(topology.bandwidth.tolist(), topology.latency.tolist()))
    return {
        "name": topology.name,
        "servers": len(topology.servers),
        "switches": int(topology.is_switch.sum()),
        "links": topology.num_links,
        "participants": len(topology.participants),
        "components": int(connected_components(graph, directed=False)[0]),
        "link_classes": [
            {"bandwidth_Bps": bandwidth, "latency_s": latency, "links": count}
            for (bandwidth, latency), count in sorted(speeds.items(), reverse=True)
        ],
        "bound_s_per_byte": limits.rs_ag_s,
        "lp_bound_s_per_byte": limits.lp_bound_s,
        "lp_note": limits.lp_note,
        "latency_bound_s": limits.latency_s,
        "fingerprint": topology.fingerprint,
        "warnings": list(topology.warnings),
    }


def _described(facts: dict[str, Any]) -> str:
    from gnnsched.topology.units import format_bandwidth, format_time

    def per_gib(seconds_per_byte: float | None, note: str | None = None) -> str:
        if seconds_per_byte is None:
            return f"not known: {note}"
        return f"{format_time(seconds_per_byte * 2**30)} per GiB ({seconds_per_byte:.6g} s per byte)"

    classes = table(
        ("links", "bandwidth", "latency"),
        [
            (
                f"{row['links']:,}",
                format_bandwidth(row["bandwidth_Bps"]),
                format_time(row["latency_s"]),
            )
            for row in facts["link_classes"][:10]
        ],
        left=0,
    )
    more = len(facts["link_classes"]) - 10
    lines = [
        f"{facts['name']}: {counted(facts['servers'], 'server')} "
        f"({counted(facts['participants'], 'participant')}), "
        f"{counted(facts['switches'], 'switch', 'switches')}, "
        f"{counted(facts['links'], 'directed link')}, {counted(facts['components'], 'component')}",
        classes,
        *([f"and {more} more classes of links"] if more > 0 else []),
        f"AllReduce bound (reduce-scatter, then all-gather): {per_gib(facts['bound_s_per_byte'])}",
        f"AllReduce bound (LP, any plan): {per_gib(facts['lp_bound_s_per_byte'], facts['lp_note'])}",
        f"latency bound: {format_time(facts['latency_bound_s'])}",
        f"fingerprint: {facts['fingerprint']}",
        *(f"warning: {warning}" for warning in facts["warnings"]),
    ]
    return "\n".join(lines)
