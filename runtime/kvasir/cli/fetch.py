"""`kvasir fetch MODEL DIR`: put a model's files into a directory; the command of the Job that fills a cache."""

import argparse
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.config.options import OptionParser, add_options, from_args
from kvasir.config.process_settings import OpsConfig, ProcessConfig
from kvasir.config.variables import refuse_unmanaged_variables
from kvasir.process.words import count
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE
from kvasir_contract.logs import setup_logging
from kvasir_contract.phases import STARTUP_LIMIT, Phase
from kvasir_contract.status_report import ReportedProgress, StatusReport

log = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0
_SPEED_SECONDS: Final = 15.0  # of which the speed is the mean


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir fetch",
        usage="kvasir fetch MODEL DIR [option …]",
        description="Download a model into a directory, for `kvasir serve DIR`. The size and the hash of each file "
        "are verified, and an interrupted download goes on where it ended.",
    )
    result.add_argument("model", metavar="MODEL", help="hf://org/name[@revision] or s3://bucket/prefix")
    result.add_argument("directory", metavar="DIR", type=Path, help="the directory; it is created if necessary")
    add_options(result, OpsConfig, "probes and metrics")
    add_options(result, ProcessConfig, "process", without=("drain_timeout",))
    return result


def run(args: argparse.Namespace) -> int:
    from kvasir.hub.fetching.filled_directory import fill, is_filled
    from kvasir.hub.source import list_files, normalise
    from kvasir.process.ops_server import OpsServer
    from kvasir.process.progress import progress_bar

    refuse_unmanaged_variables()
    process = from_args(ProcessConfig, args)
    setup_logging("fetch", process.log_level, process.log_format)
    source, directory = normalise(args.model), args.directory
    if is_filled(directory, source):
        _end(f"{directory} already has all files of {source}")
        return ExitCode.OK
    ops, status, started = from_args(OpsConfig, args), FetchStatus(), time.monotonic()
    with ExitStack() as stack:
        if ops.ops_port is not None:
            stack.enter_context(closing(OpsServer(ops, status, lambda: b"")))
        show = stack.enter_context(progress_bar(source, in_bytes=True))

        def interrupted(*_: object) -> None:
            stack.close()
            os._exit(ExitCode.INTERRUPTED)  # threads may wait for bytes for minutes; the next call goes on

        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, interrupted))

        def progress(done: int, total: int) -> None:
            status.advance(done, total)
            show(done, total)

        listing = list_files(source)
        fill(directory, listing, progress)
    seconds = max(time.monotonic() - started, 0.001)
    speed = f"{listing.size / 1e6:.1f} MB in {seconds:.0f} s"
    revision = f" at {listing.revision}" if listing.revision else ""
    _end(f"{directory} has the {count(len(listing.files), 'file')} of {source}{revision}: {speed}")
    return ExitCode.OK


def _end(text: str) -> None:
    log.info("%s", text)
    if path := os.environ.get(TERMINATION_MESSAGE_VARIABLE):
        Path(path).write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Sample:
    at: float
    done: int


class FetchStatus:
    """The progress of a download, for the ops port and the log. Several threads advance it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[_Sample] = deque()
        self._progress: ReportedProgress | None = None
        self._logged = self._last_sign = clock()

    def advance(self, done: int, total: int) -> None:
        now = self._clock()
        with self._lock:
            self._progress = ReportedProgress(done, total)
            self._last_sign = now
            if not self._samples or now - self._samples[-1].at > 0.5:
                self._samples.append(_Sample(now, done))
            while now - self._samples[0].at > _SPEED_SECONDS:
                self._samples.popleft()
            if now - self._logged < LOG_SECONDS:
                return
            self._logged = now
        log.info("%.2f of %.2f GB%s", done / 1e9, total / 1e9, self._pace(now))

    def _pace(self, now: float) -> str:
        # "" before there is a speed
        with self._lock:
            if self._progress is None or len(self._samples) < 2:
                return ""
            first, done, total = self._samples[0], self._progress.done, self._progress.total
        speed = (done - first.done) / (now - first.at)
        if speed <= 0:
            return ", no bytes arrive"
        return f", {speed / 1e6:.1f} MB/s, {_words((total - done) / speed)} left"

    def trouble(self) -> str | None:
        silent = self._clock() - self._last_sign
        return f"no bytes have arrived for {silent:.0f} s" if silent > STARTUP_LIMIT else None

    def unready_reason(self) -> str | None:
        return "the download is under way"

    def report(self) -> StatusReport:
        pace = self._pace(self._clock()).removeprefix(", ")
        return StatusReport(Phase.LOADING, pace, progress=self._progress)


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
