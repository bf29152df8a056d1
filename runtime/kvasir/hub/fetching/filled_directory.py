"""Fill a directory with the files of a model, and go on after a failure or a kill where it ended.

A file is in its place once its size and hash are verified. `.kvasir/complete` is written last, with the source. Two
processes that fill one directory take turns.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from kvasir.hub.fetching.file_listing import FileListing, Hash, ListedFile
from kvasir.hub.hub_errors import DownloadFailed

log = logging.getLogger(__name__)

CONCURRENT_FILES: Final = 8
_STATE: Final = ".kvasir"
_COMPLETE: Final = "complete"
_EARLIER: Final = "earlier"  # the record of a complete directory, while other files come
_READ_BYTES: Final = 8 * 2**20


def is_filled(directory: Path, source: str) -> bool:
    """Return whether the directory has all files of the source, by their sizes."""
    recorded, files = _record(directory / _STATE / _COMPLETE)
    try:
        return recorded == source and files == {name: (directory / name).stat().st_size for name in files}
    except OSError:
        return False


def fill(directory: Path, listing: FileListing, progress: Callable[[int, int], None]) -> None:
    """Fetch what the directory lacks. `progress` gets the bytes there and in all, in any thread.

    Raises DownloadFailed, also for a file that is not what the origin listed; the next call fetches that one again.
    """
    try:
        state = directory / _STATE
        state.mkdir(parents=True, exist_ok=True)
        with _alone(state):
            _fill(directory, state, listing, progress)
    except OSError as error:
        raise _unwritable(directory, error) from error


def _fill(directory: Path, state: Path, listing: FileListing, progress: Callable[[int, int], None]) -> None:
    for file in listing.files:
        if not _is_below(file.name):
            raise DownloadFailed(f"{listing.source} lists {file.name!r}, which is not a file of a directory")
    fetches = [_FileFetch(file, directory / file.name, state) for file in listing.files]
    meter = _Meter(sum(fetch.bytes_here() for fetch in fetches), listing.size, progress)
    _check_room(directory, listing.size - meter.done)
    with contextlib.suppress(FileNotFoundError):
        (state / _COMPLETE).rename(state / _EARLIER)
    with ThreadPoolExecutor(CONCURRENT_FILES, thread_name_prefix="fetch") as pool:
        running = [pool.submit(fetch.run, meter) for fetch in sorted(fetches, key=lambda fetch: -fetch.file.size)]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            failures = [error for future in ended if (error := future.exception()) is not None]
            if failures:
                raise next((error for error in failures if not isinstance(error, _Stopped)), failures[0])
        finally:
            meter.stop()
            pool.shutdown(cancel_futures=True)
    files = _without_earlier(directory, state, listing) | {file.name: file.size for file in listing.files}
    record = {"source": listing.source, "revision": listing.revision, "files": files}
    unfinished = state / "complete.part"
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.rename(state / _COMPLETE)
    for left in state.glob("*.part"):  # of an earlier revision
        left.unlink()


def _record(file: Path) -> tuple[str, dict[str, int]]:
    try:
        record = json.loads(file.read_text())
        return str(record["source"]), dict(record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", {}


def _is_below(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _without_earlier(directory: Path, state: Path, listing: FileListing) -> dict[str, int]:
    # an index or model.safetensors that the origin no longer has would be read instead of the new shards
    source, files = _record(state / _EARLIER)
    kept = listing.others if source == listing.source else frozenset[str]()
    for name in files.keys() - kept - {file.name for file in listing.files}:
        if _is_below(name):
            (directory / name).unlink(missing_ok=True)
    return {name: size for name, size in files.items() if name in kept}


class _Meter:
    def __init__(self, done: int, total: int, progress: Callable[[int, int], None]) -> None:
        self.done = done
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()
        self._stopped = False
        progress(done, total)

    def add(self, count: int) -> None:
        with self._lock:
            if self._stopped:
                raise _Stopped
            self.done += count
            self._progress(self.done, self._total)

    def stop(self) -> None:
        self._stopped = True


class _Stopped(Exception):
    """Another file has failed."""


class _FileFetch:
    def __init__(self, file: ListedFile, target: Path, state: Path) -> None:
        self.file = file
        self._target = target
        self._part = state / f"{file.key}.part"
        self._verified = state / f"{hashlib.sha256(file.name.encode()).hexdigest()[:32]}.verified"

    def is_here(self) -> bool:
        try:
            verified = self._verified.read_text() == self.file.key
            return verified and self._target.stat().st_size == self.file.size
        except FileNotFoundError:
            return False

    def bytes_here(self) -> int:
        if self.is_here():
            return self.file.size
        return min(self._part.stat().st_size, self.file.size) if self._part.exists() else 0

    def run(self, meter: _Meter) -> None:
        if self.is_here():
            return
        digest = self.file.new_hash()
        with self._part.open("ab") as output:
            position = _hash_of(self._part, digest, meter)
            while position < self.file.size:
                before = position
                position = self._append(output.write, position, digest, meter)
                if position == before:
                    raise DownloadFailed(
                        f"{self.file.name} ended after {position} of {self.file.size} bytes; try again"
                    )
            os.fsync(output.fileno())
        self._verify(position, digest)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._verified.unlink(missing_ok=True)
        self._part.rename(self._target)
        self._verified.write_text(self.file.key)

    def _append(self, write: Callable[[bytes], int], position: int, digest: Hash, meter: _Meter) -> int:
        # a connection that breaks after some bytes is opened again
        start = position
        try:
            with contextlib.closing(self.file.read(position)) as chunks:
                for chunk in chunks:
                    write(chunk)
                    digest.update(chunk)
                    position += len(chunk)
                    meter.add(len(chunk))
        except DownloadFailed as error:
            if position == start:
                raise
            log.info("%s goes on after %d bytes: %s", self.file.name, position, error)
        return position

    def _verify(self, size: int, digest: Hash) -> None:
        found = digest.hexdigest()
        if size == self.file.size and self.file.digest in ("", found):
            return
        self._part.unlink()
        wrong = f"{size} bytes instead of {self.file.size}" if size != self.file.size else f"the hash {found}"
        raise DownloadFailed(f"{self.file.name} arrived with {wrong}: it was deleted and is fetched again")


def _hash_of(part: Path, digest: Hash, meter: _Meter) -> int:
    with part.open("rb") as stream:
        while content := stream.read(_READ_BYTES):
            digest.update(content)
            meter.add(0)  # a sign of life: a slow volume takes minutes
        return stream.tell()


def _check_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DownloadFailed(
            f"the model needs {needed / 1e9:.1f} GB more in {directory}, and {free / 1e9:.1f} GB are free: use a "
            "larger volume"
        )


def _unwritable(directory: Path, error: OSError) -> DownloadFailed:
    why = error.strerror or error
    remedy = "use a larger or another volume"
    if isinstance(error, PermissionError):
        remedy = f"let the user {os.geteuid()} or the group {os.getegid()} write there"
    return DownloadFailed(f"{error.filename or directory} cannot be written: {why}; {remedy}")


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process fills %s: waiting for it", state.parent)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            # some network file systems have no locks
            log.debug("%s cannot be locked: %s", state, error)
        yield
