"""Bandwidths, latencies and sizes as people write them, to and from SI numbers.

A small ``b`` is bits and a capital ``B`` is bytes: ``"100Gbps"``, ``"100 Gb/s"``, ``"100Gbit/s"`` and
``"12.5GB/s"`` are the same bandwidth. Prefixes k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti, Pi are
powers of 1024. A bare number is read only in a unit that somebody declared. Numbers are converted in
decimal arithmetic, so that text read and written again is the same text.
"""

import decimal
import math
import re
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real

from gnnsched.topology.errors import InputError, shown

_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)")
_BANDWIDTH_UNIT = re.compile(r"((?i:[kmgtp]i?)?)(bits?|b|[Bb]ytes?|B)(?:ps|/s|/sec)")
_SIZE_UNIT = re.compile(r"((?i:[kmgtp]i?)?)(?:[Bb]ytes?|B)")
_LATENCY_UNITS = {
    "s": "1",
    "ms": "1e-3",
    "us": "1e-6",
    "µs": "1e-6",
    "μs": "1e-6",
    "ns": "1e-9",
    "ps": "1e-12",
}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}

_BANDWIDTH_CURE = 'write it like "100Gbps" (small b: bits) or "12.5GB/s" (capital B: bytes)'
_LATENCY_CURE = 'write it like "500ns", "1.5us", "2ms" or "0.1s"'
_SIZE_CURE = 'write it like "64MiB", "1GB" or "4096" (bytes)'


def _prefix(text: str) -> int:
    base = 1024 if text.lower().endswith("i") else 1000
    return int(base ** _POWERS[text.lower().removesuffix("i")])


@lru_cache(maxsize=1024)
def _bandwidth_unit(unit: str) -> Decimal | None:
    match = _BANDWIDTH_UNIT.fullmatch(unit)
    if match is None:
        return None
    in_bytes = match[2].lower().startswith("byte") or match[2] == "B"
    return Decimal(_prefix(match[1])) / (1 if in_bytes else 8)


@lru_cache(maxsize=1024)
def _latency_unit(unit: str) -> Decimal | None:
    return Decimal(_LATENCY_UNITS[unit]) if unit in _LATENCY_UNITS else None


def _split(what: str, value: object, cure: str) -> tuple[Decimal, str]:
    """Number and unit text of ``value``; the unit of a number is empty."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return Decimal(int(value)), ""
    if isinstance(value, Real) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InputError(f"{what} {shown(value)} is not finite; {cure}")
        return Decimal(repr(float(value))), ""  # repr is the shortest decimal form
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{what} {shown(value)} is not a number with a unit; {cure}")
    return Decimal(match[1]), match[2]


def _product(what: str, value: object, number: Decimal, scale: Decimal, cure: str) -> float:
    try:
        result = float(number * scale)
    except decimal.DecimalException:
        result = math.inf
    if not math.isfinite(result):
        raise InputError(f"{what} {shown(value)} is not finite; {cure}")
    return result


def bandwidth_unit(unit: str) -> str:
    """``unit`` itself where it is a unit of bandwidth ("Gbps"); InputError otherwise."""
    if _bandwidth_unit(unit) is None:
        raise InputError(
            f"{shown(unit)} is not a unit of bandwidth; use one like Gbps, Gbit/s, GB/s or GiB/s"
        )
    return unit


def latency_unit(unit: str) -> str:
    """``unit`` itself where it is a unit of time ("us"); InputError otherwise."""
    if _latency_unit(unit) is None:
        raise InputError(f"{shown(unit)} is not a unit of latency; use s, ms, us, ns or ps")
    return unit


def parse_bandwidth(value: str | float, unit: str | None = None) -> float:
    """Bytes/s of ``value``; ``unit`` is the declared unit of bare numbers.

    Raises InputError for what has no number, no or an unknown unit, and for values that are not positive
    and finite.
    """
    number, own = _split("bandwidth", value, _BANDWIDTH_CURE)
    scale = _bandwidth_unit(own or unit or "")
    if scale is None:
        fault = f"has the unknown unit {shown(own)}" if own else "has no unit"
        raise InputError(f"bandwidth {shown(value)} {fault}; {_BANDWIDTH_CURE}")
    result = _product("bandwidth", value, number, scale, _BANDWIDTH_CURE)
    if result <= 0:
        raise InputError(f"bandwidth {shown(value)} is not positive; leave out a link that carries nothing")
    return result


def parse_latency(value: str | float, unit: str | None = None) -> float:
    """Seconds of ``value``; ``unit`` is the declared unit of bare numbers.

    Raises InputError for what has no number, no or an unknown unit, and for negative or infinite values.
    """
    number, own = _split("latency", value, _LATENCY_CURE)
    scale = _latency_unit(own or unit or "")
    if scale is None:
        fault = f"has the unknown unit {shown(own)}" if own else "has no unit"
        raise InputError(f"latency {shown(value)} {fault}; {_LATENCY_CURE}")
    result = _product("latency", value, number, scale, _LATENCY_CURE)
    if result < 0:
        raise InputError(f"latency {shown(value)} is negative; {_LATENCY_CURE}")
    return result


def parse_size(value: str | int) -> int:
    """Bytes of ``value``, at least 1; a bare number counts bytes. Raises InputError for anything else."""
    number, own = _split("size", value, _SIZE_CURE)
    match = _SIZE_UNIT.fullmatch(own or "B")
    if match is None:
        raise InputError(f"size {shown(value)} has the unknown unit {shown(own)}; {_SIZE_CURE}")
    if number.adjusted() > 30:
        raise InputError(f"size {shown(value)} is too large; {_SIZE_CURE}")
    result = number * _prefix(match[1])
    if result != result.to_integral_value() or result < 1:
        raise InputError(f"size {shown(value)} is not a whole number of bytes from 1 up; {_SIZE_CURE}")
    return int(result)


def _plain(number: Decimal) -> str:
    """Without exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def exact_bandwidth(bytes_per_second: float) -> str:
    """Text that ``parse_bandwidth`` reads back to the same float: "100Gbps"."""
    bits = Decimal(repr(float(bytes_per_second))) * 8
    for unit, scale in (("Gbps", 10**9), ("Mbps", 10**6), ("kbps", 10**3)):
        if bits >= scale:
            return _plain(bits / scale) + unit
    return _plain(bits) + "bps"


def exact_latency(seconds: float) -> str:
    """Text that ``parse_latency`` reads back to the same float: "500ns"."""
    number = Decimal(repr(float(seconds)))
    if number == 0:
        return "0s"
    for unit in ("s", "ms", "us"):
        if number >= Decimal(_LATENCY_UNITS[unit]):
            return _plain(number / Decimal(_LATENCY_UNITS[unit])) + unit
    return _plain(number / Decimal(_LATENCY_UNITS["ns"])) + "ns"


def _four_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_bandwidth(bytes_per_second: float) -> str:
    """For people: "100 Gbit/s", four digits."""
    bits = bytes_per_second * 8
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= scale:
            return f"{_four_digits(bits / scale)} {unit}"
    return f"{_four_digits(bits)} bit/s"


def format_time(seconds: float) -> str:
    """For people: "1.234 ms", four digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{_four_digits(seconds / scale)} {unit}"
    return f"{_four_digits(seconds / 1e-9)} ns" if seconds else "0 s"


def format_size(size: float) -> str:
    """For people: "64 MiB", four digits, powers of 1024."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{_four_digits(size / 1024**power)} {unit}"
    return f"{_four_digits(size)} B"
