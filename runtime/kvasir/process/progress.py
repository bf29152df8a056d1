"""Progress bars on standard error, if that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Show = Callable[[int, int], None]  # bytes done and in all, from any thread


@contextmanager
def spinner(what: str, *, shown: bool = True) -> Iterator[None]:
    """Show work of unknown length."""
    if not (shown and sys.stderr.isatty()):
        yield
        return
    with Console(stderr=True).status(what):
        yield


@contextmanager
def progress_bar(what: str, *, in_bytes: bool = False, shown: bool = True) -> Iterator[Show]:
    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), amount, *times)
    console = Console(stderr=True)
    shown = shown and sys.stderr.isatty()
    bar = Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not shown)
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
