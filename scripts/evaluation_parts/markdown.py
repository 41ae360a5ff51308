"""Markdown tables, and a document's text between markers."""

from collections.abc import Mapping, Sequence

from gnnsched.topology import InputError


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def between_markers(text: str, contents: Mapping[str, str]) -> str:
    """``text`` with each content between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``, and nothing else changed.

    Raises InputError where a marker is missing, double or after its end.
    """
    for name, content in contents.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        if text.count(begin) != 1 or text.count(end) != 1 or end not in rest:
            raise InputError(f"README.md: needs {begin} and then {end}, once each; put them back")
        text = f"{head}{begin}\n{content}\n{end}{tail}"
    return text


def number(value: float | None, digits: int = 3) -> str:
    """Rounded to ``digits`` decimals; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
