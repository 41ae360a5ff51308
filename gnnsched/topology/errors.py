"""The one exception that bad input raises; the command line prints it as a single line and exits with 2."""

import difflib
from collections.abc import Collection


class InputError(ValueError):
    """Input that cannot be used: the message names the file, the element in it and the cure, in one line."""


def shown(value: object) -> str:
    """``value`` for a message: quoted, on one line, shortened in the middle where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}"


# What neighbouring tools call the same thing: too far apart in letters for difflib.
_SYNONYMS = {
    "capacity": "bandwidth",
    "speed": "bandwidth",
    "bw": "bandwidth",
    "rate": "bandwidth",
    "delay": "latency",
    "alpha": "latency",
    "type": "kind",
    "role": "kind",
    "from": "source",
    "src": "source",
    "to": "target",
    "dst": "target",
    "vertices": "nodes",
}


def nearest(word: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known word that ``word`` was probably meant to be, or None."""
    close = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=cutoff)
    if close:
        return close[0]
    synonym = _SYNONYMS.get(word.lower())
    return synonym if synonym in known and cutoff < 0.7 else None


def unknown_key(word: str, known: Collection[str]) -> str:
    """What refuses an unknown key: names it and the nearest known one or, failing that, all of them."""
    near = nearest(word, known)
    hint = f'did you mean "{near}"?' if near else "known keys: " + ", ".join(known)
    return f"unknown key {shown(word)}; {hint}"
