import io

import pytest

from gnnsched.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that ``time.monotonic`` shows to the module, to be set."""
    now = [100.0]
    monkeypatch.setattr("gnnsched.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("planning", 4) as progress:
        progress.say("linear")
        progress.step("greedy")
    said = terminal.getvalue()
    assert "planning" in said
    assert "linear" in said
    assert "\n" not in said
    assert said.split("\r")[-2].strip() == ""  # wiped


def test_a_log_gets_lines_only_from_what_takes_long(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("evaluating", 100) as progress:
        progress.step("one")
        clock[0] += 1.9
        progress.step("two")
        assert capsys.readouterr().err == ""
        clock[0] += 0.2
        progress.step("three")
        progress.step("four")
        assert capsys.readouterr().err == "evaluating 3/100: three\n"
        clock[0] += 1000.0
        progress.say("five")
        assert capsys.readouterr().err == "evaluating 4/100: five\n"
        # after a quarter of an hour, a line every second would bury the rest of the log
        for _ in range(60):
            clock[0] += 1.0
            progress.say("six")
        assert capsys.readouterr().err == ""


def test_without_a_total(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("planning") as progress:
        clock[0] += 3.0
        progress.step("ring")
    captured = capsys.readouterr()
    assert captured.err == "planning: ring\n"
    assert captured.out == ""
