"""`kvasir logs [SERVICE] [-f]`: the logs of a service that this machine runs or ran."""

import argparse
import heapq
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from kvasir.config.options import ConfigError, OptionParser
from kvasir.config.parsers import argument_type, parse_int
from kvasir.local.log_directory import directories, is_in_use, log_root

_PAUSE_SECONDS: Final = 0.2
_TIME: Final = re.compile(r"(?:\{\"time\": \")?(\d{4}-\d\d-\d\dT[\d:.]+Z)")


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir logs",
        usage="kvasir logs [SERVICE] [-f] [option …]",
        description="Print the logs of the processes of a service that `kvasir serve`, `kvasir up` or `kvasir "
        "run-batch` runs on this machine, or ran.",
    )
    result.add_argument(
        "service", metavar="SERVICE", nargs="?", help="its name, or name-port [default: the one that started last]"
    )
    result.add_argument(
        "-f", "--follow", action="store_true", help="print new lines too, until the service has ended"
    )
    result.add_argument(
        "-n", "--tail", type=argument_type(parse_int(0)), metavar="N", help="begin with the last N lines only"
    )
    result.add_argument("--process", metavar="NAME", help="only this process, for example engine-0")
    return result


def run(args: argparse.Namespace) -> int:
    try:
        _print(args)
    except (PermissionError, NotADirectoryError) as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    return 0


def _print(args: argparse.Namespace) -> None:
    directory = find(args.service)
    files = _Files(directory, args.process)
    print(f"{directory}:", file=sys.stderr)
    is_running = args.follow and is_in_use(directory)
    lines = files.lines()
    for line in lines if args.tail is None else deque(lines, maxlen=args.tail):
        print(line)
    while is_running:
        sys.stdout.flush()
        time.sleep(_PAUSE_SECONDS)
        is_running = is_in_use(directory)  # before the lines are read: the last ones are printed too
        for line in files.lines():
            print(line)
    if not is_in_use(directory):
        for line in files.rests():
            print(line)


def find(service: str | None) -> Path:
    """Return the log directory of a service, the one that started last if several match. Raises ConfigError."""
    known = directories()
    if service is None and known:
        return known[0]
    for path in known:
        if service in (path.name, path.name.rpartition("-")[0]):
            return path
    names = ", ".join(path.name for path in known)
    there = f"there are {names}" if names else f"there are none in {log_root()}"
    raise ConfigError(f"no logs of {service}: {there}" if service else f"no logs: {there}")


class _Files:
    """Log files of a directory. Each call of `lines` returns the lines since the last one."""

    def __init__(self, directory: Path, process: str | None) -> None:
        self._directory = directory
        self._process = process
        self._open: dict[str, BinaryIO] = {}
        if process is not None and not (directory / f"{process}.log").exists():
            names = ", ".join(path.stem for path in sorted(directory.glob("*.log")))
            raise ConfigError(f"--process {process}: {directory} has logs of {names or 'no process'}")

    def lines(self) -> Iterator[str]:
        """Return the new lines of all files in the order of their times, each with the name of its process."""
        for path in self._paths():
            if path.stem not in self._open:
                self._open[path.stem] = path.open("rb")
        width = max(map(len, self._open), default=0)
        timed = [_timed(f"{name:<{width}} | ", _complete(file)) for name, file in sorted(self._open.items())]
        return (line for _, line in heapq.merge(*timed, key=lambda entry: entry[0]))

    def rests(self) -> list[str]:
        """Return the last lines of processes that ended within a line."""
        rests = {name: file.read().decode(errors="replace") for name, file in sorted(self._open.items())}
        return [f"{name} | {rest}" for name, rest in rests.items() if rest]

    def _paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self._directory))  # glob would hide a directory that cannot be read
        except FileNotFoundError:
            return []
        paths = [self._directory / name for name in names if name.endswith(".log")]
        return [path for path in paths if self._process in (None, path.stem)]


def _complete(file: BinaryIO) -> Iterator[bytes]:
    # The beginning of a line that is being written stays in the file.
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), 1)
            return
        yield line


def _timed(prefix: str, lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    # A line without a time, as of a traceback, has the time of the line before it.
    last = ""
    for line in lines:
        text = line.decode(errors="replace").rstrip("\r\n")
        if found := _TIME.match(text):
            last = found[1]
        yield last, prefix + text
