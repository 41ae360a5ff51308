"""Plain text tables and numbers with units."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns of text; the first ``left`` of them flush left, the others flush right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def ratio_text(ratio: float | None) -> str:
    """A ratio to the bound, "-" where there is none."""
    return "-" if ratio is None else f"{ratio:.4f}"


def bandwidth_text(bytes_per_second: float | None) -> str:
    """A bandwidth in bytes, as algbw and busbw are quoted: "12.5 GB/s"."""
    if bytes_per_second is None:
        return "-"
    for unit, scale in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_second >= scale:
            return f"{bytes_per_second / scale:.4g} {unit}"
    return f"{bytes_per_second / 1e3:.4g} kB/s"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """ "1 switch", "16 switches"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
