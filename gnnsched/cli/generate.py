"""``gnnsched topology generate``: one subcommand per family of networks.

Bandwidths and latencies are text with units, per link and direction; an option that is left out takes the
generator's default, as its help says.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import arg, subcommand

from gnnsched.cli.options import check_output, check_seed
from gnnsched.cli.tables import counted

Output = Annotated[Path, arg(aliases=["-o"], metavar="FILE")]
Speed = Annotated[str, arg(metavar="BANDWIDTH")]
OptionalSpeed = Annotated[str | None, arg(metavar="BANDWIDTH")]
Speeds = Annotated[tuple[str, ...], arg(metavar="BANDWIDTH")]
OptionalSpeeds = Annotated[tuple[str, ...] | None, arg(metavar="BANDWIDTH")]
Delay = Annotated[str, arg(metavar="LATENCY")]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What all families share."""

    family: ClassVar[str]

    output: Output
    """The network file to write (.json)."""
    latency: Delay = "500ns"
    """Of each link."""

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments of the generator."""
        named = {
            field.name: _quantity(field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name != "output" and getattr(self, field.name) is not None
        }
        if "seed" in named:
            named["rng"] = named.pop("seed")
        return list(named.pop("dims", ())), named

    def run(self) -> int:
        from gnnsched.topology.formats import dump_topology
        from gnnsched.topology.generators import GENERATORS

        check_output(self.output, (".json",))
        check_seed(getattr(self, "seed", 0))
        positional, named = self.arguments()
        topology = GENERATORS[self.family](*positional, **named)
        dump_topology(topology, self.output)
        switches = int(topology.is_switch.sum())
        print(
            f"{topology.name}: {counted(len(topology.servers), 'server')}, "
            f"{counted(switches, 'switch', 'switches')}, {counted(topology.num_links, 'directed link')}, "
            f"written to {self.output}"
        )
        for warning in topology.warnings:
            print(f"note: {warning}")
        return 0


def _quantity(name: str, value: Any) -> Any:
    """Numbers of the options that are quantities, the others as they are."""
    from gnnsched.topology import InputError
    from gnnsched.topology.units import parse_bandwidth, parse_latency

    if isinstance(value, tuple) and "bandwidth" in name:
        return tuple(_quantity(name, part) for part in value)
    if not isinstance(value, str):
        return value
    try:
        return parse_latency(value) if name == "latency" else parse_bandwidth(value)
    except InputError as error:
        raise InputError(f"--{name.replace('_', '-')}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class BCube(Family):
    """BCube(ports, levels), levels counted from 0: ports^(levels+1) servers that relay."""

    family: ClassVar[str] = "bcube"

    ports: int
    """Of each switch."""
    levels: int
    """Number of the highest level; 0 is one switch."""
    bandwidth: Speed = "100Gbps"
    """Of each link."""
    level_bandwidths: OptionalSpeeds = None
    """One per level from 0, in place of --bandwidth."""


@dataclass(frozen=True, kw_only=True)
class DCell(Family):
    """DCell(ports, levels), levels counted from 0: small switches and links between servers."""

    family: ClassVar[str] = "dcell"

    ports: int
    """Of each switch, i.e. servers per DCell_0."""
    levels: int
    """Number of the highest level; 0 is one switch."""
    bandwidth: Speed = "100Gbps"
    """Of the links to the switches."""
    server_bandwidth: OptionalSpeed = None
    """Of the links between servers (default: as the others)."""


@dataclass(frozen=True, kw_only=True)
class Jellyfish(Family):
    """A random regular graph of switches with servers on each."""

    family: ClassVar[str] = "jellyfish"

    switches: int
    """Number of switches."""
    network_ports: int
    """Links of each switch to other switches."""
    servers_per_switch: int
    """Servers on each switch."""
    seed: int = 0
    """Of the random graph; the next one is taken where it is not connected."""
    bandwidth: Speed = "100Gbps"
    """Of the servers' NICs."""
    network_bandwidth: OptionalSpeed = None
    """Of the links between switches (default: as the NICs)."""


@dataclass(frozen=True, kw_only=True)
class FatTree(Family):
    """The k-ary fat-tree: k^3/4 servers below three layers of k-port switches."""

    family: ClassVar[str] = "fat_tree"

    k: int
    """Ports of each switch, an even number."""
    bandwidth: Speed = "100Gbps"
    """Of the servers' NICs."""
    edge_bandwidth: OptionalSpeed = None
    """Between edge and aggregation switches (default: as the NICs)."""
    core_bandwidth: OptionalSpeed = None
    """Between aggregation and core switches (default: as the NICs)."""


@dataclass(frozen=True, kw_only=True)
class Torus(Family):
    """Servers on a wrapped grid, linked straight to their neighbours."""

    family: ClassVar[str] = "torus"

    dims: Annotated[tuple[int, ...], arg(metavar="SIZE")]
    """Sizes of the grid, e.g. 4 4."""
    bandwidth: Speed = "100Gbps"
    """Of each link."""


@dataclass(frozen=True, kw_only=True)
class Hypercube(Family):
    """2^dim servers, linked straight where their numbers differ in one bit."""

    family: ClassVar[str] = "hypercube"

    dim: int
    """Number of dimensions."""
    bandwidth: Speed = "100Gbps"
    """Of each link."""


@dataclass(frozen=True, kw_only=True)
class DGX(Family):
    """Machines of GPUs on an NVSwitch each, and a rail switch for the NICs of the same position."""

    family: ClassVar[str] = "dgx"

    nodes: int
    """Number of machines."""
    gpus: int
    """GPUs per machine."""
    nvswitch_bandwidth: Speed = "2400Gbps"
    """Of each GPU to its NVSwitch."""
    rail_bandwidth: Speed = "200Gbps"
    """Of each GPU's NIC."""


@dataclass(frozen=True, kw_only=True)
class LeafSpine(Family):
    """Leaf switches with servers, each linked to every spine switch."""

    family: ClassVar[str] = "leaf_spine"

    leaves: int
    """Number of leaf switches."""
    servers_per_leaf: int
    """Servers on each leaf."""
    spines: int = 1
    """Number of spine switches."""
    oversubscription: float = 1.0
    """Servers' bandwidth of a leaf over that of its uplinks; 1 is non-blocking."""
    bandwidth: Speed = "100Gbps"
    """Of the servers' NICs."""
    uplink_bandwidth: OptionalSpeed = None
    """Of one uplink, in place of --oversubscription."""


@dataclass(frozen=True, kw_only=True)
class Star(Family):
    """One switch with a server per bandwidth given."""

    family: ClassVar[str] = "star"

    bandwidths: Speeds
    """The NIC of each server, e.g. 100Gbps 100Gbps 10Gbps."""


@dataclass(frozen=True, kw_only=True)
class Hub(Family):
    """One server in the middle with a straight link to each of the others."""

    family: ClassVar[str] = "hub"

    leaves: int
    """Number of the other servers."""
    bandwidth: Speed = "100Gbps"
    """Of each link."""


@dataclass(frozen=True, kw_only=True)
class Dumbbell(Family):
    """Two switches with servers and one link between them."""

    family: ClassVar[str] = "dumbbell"

    servers_per_side: int
    """Servers on each switch."""
    middle_bandwidth: Speed = "50Gbps"
    """Of the link in the middle."""
    bandwidth: Speed = "100Gbps"
    """Of the servers' NICs."""


@dataclass(frozen=True, kw_only=True)
class RandomHeterogeneous(Family):
    """A small random connected network with mixed link speeds."""

    family: ClassVar[str] = "random_heterogeneous"

    seed: int = 0
    """Of the random network."""
    min_servers: int = 3
    """Fewest servers."""
    max_servers: int = 16
    """Most servers."""
    bandwidth: Speed = "100Gbps"
    """Links have a half to twelve times this."""


Generate = (
    Annotated[BCube, subcommand(BCube.family)]
    | Annotated[DCell, subcommand(DCell.family)]
    | Annotated[Jellyfish, subcommand(Jellyfish.family)]
    | Annotated[FatTree, subcommand(FatTree.family)]
    | Annotated[Torus, subcommand(Torus.family)]
    | Annotated[Hypercube, subcommand(Hypercube.family)]
    | Annotated[DGX, subcommand(DGX.family)]
    | Annotated[LeafSpine, subcommand(LeafSpine.family)]
    | Annotated[Star, subcommand(Star.family)]
    | Annotated[Hub, subcommand(Hub.family)]
    | Annotated[Dumbbell, subcommand(Dumbbell.family)]
    | Annotated[RandomHeterogeneous, subcommand(RandomHeterogeneous.family)]
)
