import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.topology import InputError
from gnnsched.topology.units import (
    exact_bandwidth,
    exact_latency,
    format_bandwidth,
    format_size,
    format_time,
    parse_bandwidth,
    parse_latency,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("100Gbps", 12.5e9),
        ("100 Gb/s", 12.5e9),
        ("100Gbit/s", 12.5e9),
        ("100 gbps", 12.5e9),
        ("0.1Tbps", 12.5e9),
        ("12.5GB/s", 12.5e9),
        ("12.5 GBps", 12.5e9),
        (" 1e2Gbps ", 12.5e9),
        ("1GiB/s", 2.0**30),
        ("1Gibit/s", 2.0**27),
        ("8 Mbps", 1e6),
        ("1 MB/s", 1e6),
        ("9.6kbps", 1200.0),
        ("8bps", 1.0),
        ("3 B/s", 3.0),
    ],
)
def test_bandwidths(text: str, bytes_per_second: float) -> None:
    assert parse_bandwidth(text) == bytes_per_second


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ns", 500e-9),
        ("1.5us", 1.5e-6),
        ("1.5µs", 1.5e-6),
        ("1.5μs", 1.5e-6),
        ("2 ms", 2e-3),
        ("0.1s", 0.1),
        ("250ps", 250e-12),
        ("0s", 0.0),
    ],
)
def test_latencies(text: str, seconds: float) -> None:
    assert parse_latency(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 * 2**20),
        ("1GB", 10**9),
        ("4096", 4096),
        (4096, 4096),
        ("1.5 KiB", 1536),
        ("7B", 7),
        ("2kB", 2000),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


def test_bare_numbers_take_the_declared_unit_only() -> None:
    assert parse_bandwidth(100, "Gbps") == parse_bandwidth("100", "Gbps") == 12.5e9
    assert parse_bandwidth("50GB/s", "Gbps") == 50e9  # its own unit goes first
    assert parse_latency(0.5, "us") == 500e-9
    for parse in (parse_bandwidth, parse_latency):
        with pytest.raises(InputError, match=r"100 has no unit; write it like"):
            parse(100)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Unknown",
        "fast",
        "Gbps",
        "0Gbps",
        "-1Gbps",
        "nan",
        "infGbps",
        "1e999Gbps",
        "1e999999999Gbps",
        "100GT/s",
        "100G",
        "1,000Gbps",
        "100Gbit",
        "100GBPS",
        "\u0661Gbps",
        math.nan,
        math.inf,
        0,
        True,
        None,
        [1],
    ],
)
def test_refused_bandwidths(value: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_bandwidth(value, "Gbps" if isinstance(value, float | int) else None)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith("bandwidth")
    assert ";" in message
    assert "\n" not in message


@pytest.mark.parametrize("value", ["", "-1ns", "5", "1 min", "5 Ms", "inf s", math.nan, True, None])
def test_refused_latencies(value: object) -> None:
    with pytest.raises(InputError, match=r"latency .*;"):
        parse_latency(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", "0", "-1", "0.5", "1.5B", "64Mb", "1G", "64 MiB/s", "1e400GB", True])
def test_refused_sizes(value: str) -> None:
    with pytest.raises(InputError, match=r"size .*;"):
        parse_size(value)


@given(st.floats(min_value=1e-3, max_value=1e18))
def test_written_bandwidths_read_back_exactly(value: float) -> None:
    assert parse_bandwidth(exact_bandwidth(value)) == value


@given(st.floats(min_value=0, max_value=1e6))
def test_written_latencies_read_back_exactly(value: float) -> None:
    assert parse_latency(exact_latency(value)) == value


def test_text_in_files() -> None:
    assert exact_bandwidth(12.5e9) == "100Gbps"
    assert exact_bandwidth(300e9) == "2400Gbps"
    assert exact_bandwidth(6.25e6) == "50Mbps"
    assert exact_latency(500e-9) == "500ns"
    assert exact_latency(1.5e-6) == "1.5us"
    assert exact_latency(0.0) == "0s"


def test_text_for_people() -> None:
    assert format_bandwidth(12.5e9) == "100 Gbit/s"
    assert format_bandwidth(300e9) == "2400 Gbit/s"
    assert format_time(1.23456e-3) == "1.235 ms"
    assert format_time(0) == "0 s"
    assert format_time(500e-9) == "500 ns"
    assert format_size(64 * 2**20) == "64 MiB"
    assert format_size(1000) == "1000 B"
