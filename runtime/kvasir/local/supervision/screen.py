"""The output of `kvasir up`: a live table on a terminal, a line per change elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvasir.local.supervision.process_spec import LocalPhase, ProcessState
from kvasir_contract.phases import Phase

_BAR_WIDTH = 30
_STYLES: dict[Phase | LocalPhase, str] = {
    Phase.READY: "green",
    LocalPhase.RESTARTING: "yellow",
    Phase.FAILED: "red",
    LocalPhase.STOPPED: "dim",
}


class Screen(Protocol):
    def changed(self, state: ProcessState) -> None:
        """A process entered another phase or made progress."""

    def serving(self) -> None:
        """Every process is Ready for the first time."""

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def make_screen(welcome: Sequence[str], several: bool) -> Screen:
    """Return the screen. `welcome`: lines for when everything is Ready. `several`: name the service of each
    process."""
    return LastingScreen(LiveScreen(welcome, several) if sys.stdout.isatty() else PlainScreen(welcome, several))


class LastingScreen:
    # Shows on another screen until that is gone (a closed terminal, a broken pipe): the processes go on.
    def __init__(self, screen: Screen) -> None:
        self._screen: Screen | None = screen

    def changed(self, state: ProcessState) -> None:
        self._show(lambda screen: screen.changed(state))

    def serving(self) -> None:
        self._show(lambda screen: screen.serving())

    def note(self, text: str) -> None:
        self._show(lambda screen: screen.note(text))

    def close(self) -> None:
        self._show(lambda screen: screen.close())

    def _show(self, what: Callable[[Screen], None]) -> None:
        if self._screen is None:
            return
        try:
            what(self._screen)
        except OSError:
            self._screen = None


class PlainScreen:
    def __init__(self, welcome: Sequence[str], several: bool) -> None:
        self._welcome = welcome
        self._several = several
        self._shown: dict[str, str] = {}
        self._log_lines = _LogLines(several)

    def changed(self, state: ProcessState) -> None:
        title = title_of(state, self._several)
        line = f"{title}: {describe(state, coarse=True)}"
        if self._shown.get(title) != line:
            self._shown[title] = line
            self.note(line)
        for text in self._log_lines.lines(state):
            self.note(text)

    def serving(self) -> None:
        for line in self._welcome:
            self.note(line)

    def note(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader has gone; the services go on
            print(text, flush=True)

    def close(self) -> None:
        pass


class LiveScreen:
    # The table stays at the bottom, and is drawn when something changes, never by a timer.
    def __init__(self, welcome: Sequence[str], several: bool, console: Console | None = None) -> None:
        self._welcome = welcome
        self._several = several
        self._states: dict[str, ProcessState] = {}
        self._log_lines = _LogLines(several)
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def changed(self, state: ProcessState) -> None:
        title = title_of(state, self._several)
        self._states[title] = state
        if state.phase == LocalPhase.RESTARTING:  # the row shows it for a second only
            self.note(f"{title}: {describe(state)}")
        for line in self._log_lines.lines(state):
            self._console.print(Text(line, style="dim"), soft_wrap=True)
        self._live.update(self._table(), refresh=True)

    def serving(self) -> None:
        for line in self._welcome:
            self.note(line)

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for title in sorted(self._states, key=_natural):
            state = self._states[title]
            row: list[RenderableType] = [
                Text(title, style="bold"),
                Text(describe(state), style=_STYLES.get(state.phase, "")),
            ]
            if (progress := state.progress) is not None and progress.total > 0:
                row.append(ProgressBar(total=progress.total, completed=progress.done, width=_BAR_WIDTH))
            table.add_row(*row)
        return table


class _LogLines:
    # Warnings at start-up and the last lines of failed processes, each once.
    def __init__(self, several: bool) -> None:
        self._several = several
        self._last: list[str] = []
        self._warnings: set[str] = set()

    def lines(self, state: ProcessState) -> Iterator[str]:
        for warning in state.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                yield f"{title_of(state, self._several)}: warning: {warning}"
        if state.phase == LocalPhase.RESTARTING and state.last_lines != self._last:
            self._last = state.last_lines
            yield from (f"  {line}" for line in state.last_lines)


def title_of(state: ProcessState, several: bool) -> str:
    """Return "rank 0" or "frontend 0"; with several services "demo rank 0"."""
    kind, _, number = state.spec.name.partition("-")
    title = f"{'rank' if kind == 'engine' else kind} {number}"
    return f"{state.spec.service} {title}" if several else title


def describe(state: ProcessState, coarse: bool = False) -> str:
    """Return the phase with its details; `coarse` rounds progress to tenths."""
    text = str(state.phase)
    if state.progress is not None and state.progress.total > 0:
        done, total = state.progress.done, state.progress.total
        if coarse:
            done = total * (10 * done // total) // 10
        text += f" {_amount(done, total)}"
    if state.phase == Phase.READY and state.ready_after is not None:
        text += f" ({state.ready_after:.1f} s)"
        if state.restarts:
            text += f", restart {state.restarts}: {state.cause}"
    if state.message:
        text += f": {state.message}"
    return text


def _amount(done: int, total: int) -> str:
    """Return "3.1/15.0 GB", in the unit that fits the total."""
    unit, size = next((u, s) for u, s in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1)) if total >= s)
    return f"{done / size:.1f}/{total / size:.1f} {unit}"


def _natural(title: str) -> list[tuple[int, str]]:
    # rank 2 stands before rank 10.
    return [(int(word), "") if word.isdigit() else (-1, word) for word in title.split()]
