import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import BAD_FILES

from gnnsched.cli import main
from gnnsched.topology import Topology
from gnnsched.topology.formats import load_topology, topology_schema
from gnnsched.topology.generators import (
    GENERATORS,
    bcube,
    dcell,
    dgx,
    dumbbell,
    fat_tree,
    hub,
    hypercube,
    jellyfish,
    leaf_spine,
    random_heterogeneous,
    star,
    torus,
)

Captured = pytest.CaptureFixture[str]


def command(*arguments: object) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from gnnsched.cli import main; sys.exit(main())",
        *map(str, arguments),
    ]


def assert_one_line(capsys: Captured, *parts: str) -> None:
    """Nothing on stdout, one line on stderr that names the parts."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gnnsched: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    for part in parts:
        assert part in captured.err


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_networks_end_in_one_line(case: str, tmp_path: Path, capsys: Captured) -> None:
    content, named = BAD_FILES[case]
    path = tmp_path / "net.json"
    path.write_bytes(content)
    assert main(["topology", "info", str(path)]) == 2
    assert_one_line(capsys, str(path), *named)


@pytest.mark.parametrize("case", ["islands", "typo in edge", "empty"])
@pytest.mark.parametrize(
    "line",
    [
        ["schedule", "NET", "-o", "OUT.json", "--plot", "OUT.png"],
        ["evaluate", "NET", "--json", "OUT.json"],
        ["embed", "NET", "--logdir", "OUT"],
        ["train", "--topologies", "NET", "-o", "OUT"],
        ["verify", "NET", "NET"],
        ["simulate", "NET", "NET"],
    ],
)
def test_every_command_refuses_a_bad_network_and_leaves_nothing(
    line: list[str], case: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(BAD_FILES[case][0])
    line = [word.replace("NET", str(path)).replace("OUT", str(tmp_path / "out")) for word in line]
    assert main(line) == 2
    assert_one_line(capsys, str(path))
    assert os.listdir(tmp_path) == ["net.json"]


def test_a_process_prints_one_line_without_traceback(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(b"[1]")
    for wrong in (path, tmp_path, tmp_path / "absent.json"):
        done = subprocess.run(command("topology", "info", wrong), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"gnnsched: error: {wrong}: ")
        assert done.stderr.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom gnnsched.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'torch', 'numba', 'networkx', 'scipy', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in ("topology", "schedule", "verify", "simulate", "train", "evaluate", "embed"):
        assert name in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    running = subprocess.Popen(command("topology", "schema"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    error = running.stderr.read()
    running.wait()
    running.stderr.close()
    assert error == b""


@pytest.mark.parametrize(
    "line", [["schedul"], ["topology"], ["schedule"], ["topology", "info", "x", "--jsn"], ["train", "-o"], []]
)
def test_usage_errors_exit_with_2(line: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


FAMILIES: dict[str, tuple[str, Topology]] = {
    "bcube": ("--ports 4 --levels 1", bcube(4, 1)),
    "bcube with classes": (
        "--ports 2 --levels 1 --level-bandwidths 10Gbps 40Gbps",
        bcube(2, 1, level_bandwidths=(1.25e9, 5e9)),
    ),
    "dcell": ("--ports 3 --levels 1 --server-bandwidth 25GB/s", dcell(3, 1, server_bandwidth=25e9)),
    "jellyfish": (
        "--switches 6 --network-ports 3 --servers-per-switch 2 --seed 5 --network-bandwidth 40Gbps",
        jellyfish(6, 3, 2, 5, network_bandwidth=5e9),
    ),
    "fat_tree": ("--k 4 --core-bandwidth 50Gbps", fat_tree(4, core_bandwidth=6.25e9)),
    "fat-tree": ("--k 2 --edge-bandwidth 50Gbps", fat_tree(2, edge_bandwidth=6.25e9)),
    "torus": ("--dims 3 2 4", torus(3, 2, 4)),
    "hypercube": ("--dim 3 --latency 2us", hypercube(3, latency=2e-6)),
    "dgx": ("--nodes 2 --gpus 4 --rail-bandwidth 400Gbps", dgx(2, 4, rail_bandwidth=50e9)),
    "leaf_spine": ("--leaves 3 --servers-per-leaf 2 --spines 2 --oversubscription 4", leaf_spine(3, 2, 2, 4)),
    "star": ("--bandwidths 100Gbps 10Gbps 1GB/s", star([12.5e9, 1.25e9, 1e9])),
    "hub": ("--leaves 3 --bandwidth 1GB/s", hub(3, 1e9)),
    "dumbbell": ("--servers-per-side 2 --middle-bandwidth 10Gbps", dumbbell(2, 1.25e9)),
    "random_heterogeneous": ("--seed 9 --max-servers 6", random_heterogeneous(9, max_servers=6)),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_generate_writes_what_the_generator_makes(case: str, tmp_path: Path, capsys: Captured) -> None:
    options, wanted = FAMILIES[case]
    path = tmp_path / "net.json"
    assert main(["topology", "generate", case.split()[0], *options.split(), "-o", str(path)]) == 0
    found = load_topology(path)
    assert (found.name, found.fingerprint) == (wanted.name, wanted.fingerprint)
    said = capsys.readouterr().out
    assert wanted.name in said
    assert str(path) in said


@pytest.mark.parametrize("family", GENERATORS)
def test_every_family_has_its_defaults(family: str, tmp_path: Path) -> None:
    needed = {
        "bcube": "--ports 2 --levels 1",
        "dcell": "--ports 2 --levels 1",
        "jellyfish": "--switches 4 --network-ports 3 --servers-per-switch 1",
        "fat_tree": "--k 2",
        "torus": "--dims 3",
        "hypercube": "--dim 2",
        "dgx": "--nodes 2 --gpus 2",
        "leaf_spine": "--leaves 2 --servers-per-leaf 2",
        "star": "--bandwidths 100Gbps",
        "hub": "--leaves 2",
        "dumbbell": "--servers-per-side 1",
        "random_heterogeneous": "",
    }
    defaults: dict[str, Topology] = {
        "bcube": bcube(2, 1),
        "dcell": dcell(2, 1),
        "jellyfish": jellyfish(4, 3, 1, 0),
        "fat_tree": fat_tree(2),
        "torus": torus(3),
        "hypercube": hypercube(2),
        "dgx": dgx(2, 2),
        "leaf_spine": leaf_spine(2, 2),
        "star": star([12.5e9]),
        "hub": hub(2),
        "dumbbell": dumbbell(1),
        "random_heterogeneous": random_heterogeneous(0),
    }
    path = tmp_path / "net.json"
    assert main(["topology", "generate", family, *needed[family].split(), "-o", str(path)]) == 0
    assert load_topology(path).fingerprint == defaults[family].fingerprint


def test_jellyfish_says_its_seed(tmp_path: Path, capsys: Captured) -> None:
    line = "topology generate jellyfish --switches 6 --network-ports 3 --servers-per-switch 1 --seed 4 -o"
    assert main([*line.split(), str(tmp_path / "net.json")]) == 0
    assert "seed 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("torus --dims 0", "dimension 0 is 0"),
        ("star --bandwidths 100", "--bandwidths: bandwidth '100' has no unit"),
        ("hub --leaves 2 --bandwidth fast", "--bandwidth: bandwidth 'fast'"),
        ("hub --leaves 2 --bandwidth 0Gbps", "--bandwidth: bandwidth '0Gbps' is not positive"),
        ("hub --leaves 2 --latency 5", "--latency: latency 5"),
        ("hub --leaves -1", "leaves is -1"),
        ("fat_tree --k 3", "even"),
        ("leaf_spine --leaves 2 --servers-per-leaf 2 --oversubscription inf", "bandwidth 0.0"),
        ("jellyfish --switches 5 --network-ports 3 --servers-per-switch 1", "must be even"),
        ("jellyfish --switches 6 --network-ports 3 --servers-per-switch 1 --seed -1", "--seed: -1"),
        ("random_heterogeneous --min-servers 9 --max-servers 3", "max_servers 3 is below"),
        ("bcube --ports 100 --levels 50", "more than"),
    ],
)
def test_impossible_networks_end_in_one_line(
    options: str, named: str, tmp_path: Path, capsys: Captured
) -> None:
    named = named.replace("latency 5", "latency '5' has no unit")
    assert main(["topology", "generate", *options.split(), "-o", str(tmp_path / "net.json")]) == 2
    assert_one_line(capsys, named)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["net.txt", "absent/net.json", "net"])
def test_generate_refuses_places_it_cannot_write_to(place: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["topology", "generate", "hub", "--leaves", "2", "-o", str(tmp_path / place)]) == 2
    assert_one_line(capsys, place)


def test_info_as_json(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "net.json"
    network = {
        "nodes": [
            *({"id": f"s{i}", "kind": "server"} for i in range(4)),
            {"id": "relay", "kind": "server", "participant": False},
            {"id": "w", "kind": "switch"},
        ],
        "edges": [
            {"source": name, "target": "w", "bandwidth": "8Gbps"}
            for name in ("s0", "s1", "s2", "s3", "relay")
        ],
    }
    path.write_text(json.dumps(network))
    assert main(["topology", "info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    counts = {
        key: facts[key] for key in ("name", "servers", "switches", "links", "participants", "components")
    }
    assert counts == {
        "name": "net",
        "servers": 5,
        "switches": 1,
        "links": 10,
        "participants": 4,
        "components": 1,
    }
    # 2(N-1)/N seconds per byte over 1 GB/s
    assert facts["bound_s_per_byte"] == pytest.approx(1.5e-9, rel=1e-12)
    assert facts["lp_bound_s_per_byte"] < 1.5e-9  # in the LP the relay may reduce too
    assert facts["latency_bound_s"] == 0.0
    assert facts["fingerprint"] == load_topology(path).fingerprint
    assert any("latency" in warning for warning in facts["warnings"])


def test_info_for_people_has_units_and_warnings(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "net.json"
    path.write_text(
        '{"nodes": [{"id": 1}, {"id": 2}], "edges": [{"source": 1, "target": 2, "bandwidth": "8Gbps"}]}'
    )
    assert main(["topology", "info", str(path)]) == 0
    said = capsys.readouterr().out
    assert "8 Gbit/s" in said
    assert "1.074 s per GiB" in said
    assert "warning: no link has latency: taken as 0" in said


def test_the_schema_is_printed(capsys: Captured) -> None:
    assert main(["topology", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == topology_schema()
