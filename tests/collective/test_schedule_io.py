"""Schedule files: every bit survives, other programs' files load, what cannot be read is named in a line."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hand_schedules import direct_ring, network, random_network, star, to_rows, tree_schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.collective.schedule import Schedule
from gnnsched.collective.schedule_io import dump_schedule, load_schedule
from gnnsched.collective.verify import verify
from gnnsched.topology import InputError, Topology


def example(n: int = 3) -> Schedule:
    schedule = tree_schedule(star([1.0, 2.0, 3.0][:n], 0.1), np.random.default_rng(1))
    return Schedule(schedule.topology, 12.0, schedule.roots, schedule.transfers, {"name": "hand", "seed": 7})


def same(a: Schedule, b: Schedule) -> bool:
    return (
        to_rows(a) == to_rows(b)
        and a.roots.tolist() == b.roots.tolist()
        and a.message_bytes == b.message_bytes
        and dict(a.planner) == dict(b.planner)
    )


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_every_bit_survives(tmp_path: Path, suffix: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10**6), st.floats(1e-3, 1e12))
    def check(seed: int, message_bytes: float) -> None:
        rng = np.random.default_rng(seed)
        schedule = tree_schedule(random_network(rng), rng, 2, message_bytes)
        dump_schedule(schedule, tmp_path / f"s.{suffix}")
        again = load_schedule(tmp_path / f"s.{suffix}", schedule.topology)
        assert same(again, schedule)
        for name in (
            "phase",
            "chunk",
            "source",
            "target",
            "path_start",
            "path_links",
            "rate",
            "start",
            "end",
        ):
            assert getattr(again.transfers, name).dtype == getattr(schedule.transfers, name).dtype

    check()
    assert [p.name for p in tmp_path.iterdir()] == [f"s.{suffix}"]


def test_the_json_is_the_contract(tmp_path: Path) -> None:
    schedule = example(2)
    dump_schedule(schedule, tmp_path / "s.json")
    content = json.loads((tmp_path / "s.json").read_text())
    t = schedule.transfers
    assert content == {
        "format": "gnnsched-schedule/1",
        "topology": {"name": "star2", "fingerprint": schedule.topology.fingerprint},
        "message_bytes": 12,
        "chunks": 2,
        "participants": ["s0", "s1"],
        "roots": ["s0", "s1"],
        "links": [["s0", "w0", 1, 0.1], ["w0", "s0", 1, 0.1], ["s1", "w0", 2, 0.1], ["w0", "s1", 2, 0.1]],
        "transfers": {
            "phase": ["reduce", "broadcast", "reduce", "broadcast"],
            "chunk": [0, 0, 1, 1],
            "source": ["s1", "s0", "s0", "s1"],
            "target": ["s0", "s1", "s1", "s0"],
            "path": [[2, 1], [0, 3], [0, 3], [2, 1]],
            "rate_Bps": [1, 1, 1, 1],
            "start_s": t.start.tolist(),
            "end_s": t.end.tolist(),
        },
        "planner": {"name": "hand", "seed": 7},
    }


def test_ids_of_every_kind(tmp_path: Path) -> None:
    base = example().topology
    ids = (("rack", 1), 10, "10", 2.5)
    topology = Topology.from_arrays(
        "ids", ids, base.is_switch, base.link_source, base.link_target, base.bandwidth, base.latency
    )
    schedule = tree_schedule(topology, np.random.default_rng(0))
    for suffix in ("json", "npz"):
        dump_schedule(schedule, tmp_path / f"s.{suffix}")
        assert same(load_schedule(tmp_path / f"s.{suffix}", topology), schedule)


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_a_topology_in_another_order_is_matched_by_content(tmp_path: Path, suffix: str) -> None:
    # Two parallel cables of one kind and one slower: the transfers' links must keep them apart.
    topology = network(3, 1, [(0, 3, 1.0), (0, 3, 1.0), (0, 3, 0.5), (1, 3, 2.0), (2, 3, 1.0, 0.25)])
    schedule = tree_schedule(topology, np.random.default_rng(3), 2)
    dump_schedule(schedule, tmp_path / f"s.{suffix}")
    node, link = np.array([2, 3, 0, 1]), np.random.default_rng(5).permutation(topology.num_links)
    where = np.argsort(node)
    other = Topology.from_arrays(
        "hand again",
        [topology.node_ids[i] for i in node],
        topology.is_switch[node],
        where[topology.link_source[link]],
        where[topology.link_target[link]],
        topology.bandwidth[link],
        topology.latency[link],
    )
    again = load_schedule(tmp_path / f"s.{suffix}", other)
    assert verify(again).ok
    assert [other.node_ids[i] for i in again.roots] == [topology.node_ids[i] for i in schedule.roots]
    ours, theirs = again.transfers.path_links, schedule.transfers.path_links
    assert (other.bandwidth[ours] == topology.bandwidth[theirs]).all()
    assert len(np.unique(ours)) == len(np.unique(theirs))


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_another_topology_is_refused_naming_both(tmp_path: Path, suffix: str) -> None:
    schedule = example()
    dump_schedule(schedule, tmp_path / f"s.{suffix}")
    other = star([1.0, 2.0])
    with pytest.raises(InputError, match="plan again") as caught:
        load_schedule(tmp_path / f"s.{suffix}", other)
    assert schedule.topology.fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)


def test_a_wrong_schedule_loads_and_is_judged_wrong(tmp_path: Path) -> None:
    dump_schedule(example(), tmp_path / "s.json")
    content = json.loads((tmp_path / "s.json").read_text())
    content["transfers"]["start_s"][0] = -5.0
    content["transfers"]["path"][1] = []
    (tmp_path / "s.json").write_text(json.dumps(content))
    assert not verify(load_schedule(tmp_path / "s.json", example().topology)).ok


def change(path: tuple, value: object):
    def apply(content: dict) -> dict:
        place = content
        for key in path[:-1]:
            place = place[key]
        if value is DROP:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return content

    return apply


DROP = object()
BAD = {
    "other format": (change(("format",), "gnnsched-schedule/2"), "gnnsched-schedule/2"),
    "no format": (change(("format",), DROP), "no 'format'"),
    "a list": (lambda content: [content], "Expected `object`"),
    "unknown key": (change(("chunk",), 3), "chunk"),
    "missing key": (change(("roots",), DROP), "roots"),
    "missing column": (change(("transfers", "rate_Bps"), DROP), "rate_Bps"),
    "message of text": (change(("message_bytes",), "12"), "$.message_bytes"),
    "no bytes": (change(("message_bytes",), 0), "$.message_bytes"),
    "chunks differ": (change(("chunks",), 5), "5 chunks and 3 roots"),
    "unknown root": (change(("roots", 1), "s9"), "roots[1]: the topology has no node 's9'"),
    "root a dict": (change(("roots", 1), {"id": 1}), "roots[1]"),
    "other participants": (change(("participants",), ["s0", "s1"]), "participants"),
    "twice a participant": (change(("participants",), ["s0", "s1", "s1"]), "participants"),
    "planner without name": (change(("planner",), {}), "planner.name"),
    "planner a text": (change(("planner",), "ring"), "$.planner"),
    "link unknown": (change(("links", 2, 2), 77.0), "links[2]"),
    "link short": (change(("links", 2), ["s0", "w0", 1.0]), "$.links[2]"),
    "ragged": (change(("transfers", "chunk"), [0]), "transfers.chunk has 1 entries"),
    "phase": (change(("transfers", "phase", 2), "gather"), "$.transfers.phase[2]"),
    "chunk beyond": (change(("transfers", "chunk", 1), 3), "transfers.chunk[1] is 3"),
    "chunk negative": (change(("transfers", "chunk", 1), -1), "$.transfers.chunk[1]"),
    "chunk huge": (change(("transfers", "chunk", 1), 2**70), "$.transfers.chunk[1]"),
    "unknown source": (
        change(("transfers", "source", 0), 0),
        "transfers.source[0]: the topology has no node 0",
    ),
    "target a list": (change(("transfers", "target", 0), [1]), "transfers.target[0]"),
    "link beyond": (change(("transfers", "path", 1), [0, 99]), "transfers.path[1]: link 99"),
    "path no list": (change(("transfers", "path", 1), 3), "$.transfers.path[1]"),
    "rate null": (change(("transfers", "rate_Bps", 1), None), "$.transfers.rate_Bps[1]"),
    "NaN": (change(("transfers", "start_s", 1), float("nan")), "not a schedule"),
    "infinite": (change(("transfers", "end_s", 1), float("inf")), "not a schedule"),
    "fingerprint a number": (change(("topology", "fingerprint"), 5), "$.topology.fingerprint"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_json_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    apply, expected = BAD[name]
    path = tmp_path / "bad.json"
    dump_schedule(example(), path)
    path.write_text(json.dumps(apply(json.loads(path.read_text()))))
    with pytest.raises(InputError) as caught:
        load_schedule(path, example().topology)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"  \n", b"{", b"\xff\xfe{}", b"null", b"[" * 100_000, b"PK\x03\x04", b'{"format": 3}'],
    ids=["empty", "blank", "cut", "no utf-8", "null", "deep", "zip", "number"],
)
@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_foreign_bytes_are_refused_in_one_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_schedule(path, example().topology)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bom_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    dump_schedule(example(), path)
    text = json.dumps(json.loads(path.read_text()), indent=1).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert same(load_schedule(path, example().topology), example())


NPZ_BAD = {
    "array missing": (lambda a: a.pop("rate"), "'rate' is missing"),
    "pickled": (lambda a: a.update(rate=np.array([{}], object)), "damaged"),
    "text column": (lambda a: a.update(chunk=np.array(["a"])), "'chunk'"),
    "two dimensions": (lambda a: a.update(rate=a["rate"][None]), "'rate'"),
    "ragged": (lambda a: a.update(rate=a["rate"][1:]), "'rate' has"),
    "phase": (lambda a: a["phase"].__setitem__(1, 2), "phase[1] is 2"),
    "source": (lambda a: a["source"].__setitem__(1, 4), "source[1] is 4"),
    "negative": (lambda a: a["target"].__setitem__(1, -1), "target[1] is -1"),
    "path": (lambda a: a["path_links"].__setitem__(0, 50), "path_links[0] is 50"),
    "division": (lambda a: a["path_start"].__setitem__(1, 99), "path_start"),
    "infinite": (lambda a: a["end"].__setitem__(2, np.inf), "transfers.end_s[2] is inf"),
    "NaN": (lambda a: a["start"].__setitem__(0, np.nan), "transfers.start_s[0] is nan"),
    "header": (lambda a: a.update(header=a["header"][:20]), "not a schedule"),
    "nodes": (lambda a: a.update(nodes=np.frombuffer(b'["s0","s1","s2","w7"]', np.uint8)), "no node 'w7'"),
}


@pytest.mark.parametrize("name", NPZ_BAD)
def test_bad_npz_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    apply, expected = NPZ_BAD[name]
    path = tmp_path / "bad.npz"
    dump_schedule(example(), path)
    arrays = {key: np.array(value) for key, value in np.load(path).items()}
    apply(arrays)
    np.savez(path, **arrays)
    with pytest.raises(InputError) as caught:
        load_schedule(path, example().topology)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    dump_schedule(example(), path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut] + b"x")
        with pytest.raises(InputError):
            load_schedule(path, example().topology)
    for at in range(0, len(whole), 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            load_schedule(path, example().topology)
        except InputError:
            continue


def test_other_suffixes_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ends in"):
        dump_schedule(example(), tmp_path / "s.yml")
    with pytest.raises(InputError, match="ends in"):
        load_schedule(tmp_path / "s", example().topology)
    with pytest.raises(InputError, match="no such file"):
        load_schedule(tmp_path / "s.json", example().topology)
    with pytest.raises(InputError, match="cannot be written"):
        dump_schedule(example(), tmp_path / "missing" / "s.json")
    odd = Schedule(direct_ring(3), 1.0, np.zeros(1, np.int32), example().transfers, {"name": {1, 2}})
    object.__setattr__(odd, "planner", {"name": "x", "object": object()})
    with pytest.raises(InputError, match="planner"):
        dump_schedule(odd, tmp_path / "s.npz")
    assert list(tmp_path.iterdir()) == []


def test_numpy_values_of_the_planner_are_written(tmp_path: Path) -> None:
    base = example()
    planner = {"name": "x", "seed": np.int64(3), "scores": np.array([0.5, 1.5])}
    dump_schedule(Schedule(base.topology, 12.0, base.roots, base.transfers, planner), tmp_path / "s.json")
    again = load_schedule(tmp_path / "s.json", base.topology)
    assert again.planner == {"name": "x", "seed": 3, "scores": [0.5, 1.5]}


def test_one_server_has_a_schedule_without_transfers(tmp_path: Path) -> None:
    alone = network(2, 0, [(0, 1, 1.0)], relays=[1])
    schedule = tree_schedule(alone, np.random.default_rng(0))
    empty = {
        name: getattr(schedule.transfers, name)[:0]
        for name in ("phase", "chunk", "source", "target", "path_links")
    }
    empty |= {name: np.zeros(0) for name in ("rate", "start", "end")}
    none = type(schedule.transfers)(path_start=np.zeros(1, np.int64), **empty)
    for suffix in ("json", "npz"):
        dump_schedule(Schedule(alone, 8.0, schedule.roots, none, {"name": "x"}), tmp_path / f"s.{suffix}")
        again = load_schedule(tmp_path / f"s.{suffix}", alone)
        assert len(again.transfers) == 0
        assert verify(again).ok


def test_the_archive_holds_no_pickles(tmp_path: Path) -> None:
    dump_schedule(example(), tmp_path / "s.npz")
    content = (tmp_path / "s.npz").read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files)
