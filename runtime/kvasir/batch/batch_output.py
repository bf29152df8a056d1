"""Write the output of a batch: a JSON object per answer.

Each answer is one write, so an interrupted run leaves whole lines. The next run keeps them and removes a partial
line of a full disk.
"""

import fcntl
import os
import secrets
from collections.abc import Set
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from kvasir.batch.batch_input import id_hash
from kvasir.config.options import CommandFailed, ConfigError


class BatchResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status_code < 300


class _Answer(msgspec.Struct):
    id: str
    custom_id: str
    response: BatchResponse
    # always null: a request without an answer is not in the file, so that the next run sends it
    error: None = None


class _ReadResponse(msgspec.Struct):
    status_code: int = 200


class _Answered(msgspec.Struct):
    custom_id: str
    response: _ReadResponse


_decoder = msgspec.json.Decoder(_Answered)


class AnswerFile:
    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be written, is in use, or is not a batch output."""
        self._path = path
        self.answered: set[int] = set()
        self.failed: set[int] = set()
        self._outdated: Set[int] = frozenset()
        with ExitStack() as files:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(f"cannot write {path}: {error.strerror}") from error
            files.callback(os.close, self._file)
            self._lock(self._file)
            self._read()
            self._files = files.pop_all()

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def replace(self, failed: Set[int]) -> None:
        # they stay in the file until the first new answer
        self._outdated = failed & self.failed
        self.answered -= self._outdated

    def write(self, custom_id: str, response: BatchResponse) -> None:
        """Raises CommandFailed if the disk is full."""
        line = msgspec.json.encode(_Answer(f"batch_req_{secrets.token_hex(12)}", custom_id, response)) + b"\n"
        try:
            if self._outdated:
                self._remove_outdated()
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise CommandFailed(f"cannot write {self._path}: {error.strerror}") from error

    def _remove_outdated(self) -> None:
        # A copy replaces the file, so that a kill leaves one or the other.
        path = self._path.resolve()
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        new = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        # It stays open and locked, since another run may have opened it already.
        self._files.callback(os.close, new)
        try:
            self._lock(new)
            os.fchmod(new, os.fstat(self._file).st_mode & 0o7777)
            with path.open("rb") as old, os.fdopen(os.dup(new), "wb") as copy:
                copy.writelines(line for line in old if line.strip() and not self._is_outdated(line))
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        self._file, self._outdated = new, frozenset()

    def _is_outdated(self, line: bytes) -> bool:
        return id_hash(_decoder.decode(line).custom_id) in self._outdated

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self._path} is being written by another run-batch: wait for it") from None

    def _read(self) -> None:
        # leave the file position behind the last whole line
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                if line.strip():
                    self._note(number, line)
        try:
            os.ftruncate(self._file, end)
        except OSError as error:  # a device, such as /dev/stdout
            raise ConfigError(f"{self._path} is not a regular file, which --output-file needs") from error
        os.lseek(self._file, end, os.SEEK_SET)

    def _note(self, number: int, line: bytes) -> None:
        try:
            answer = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigError(
                f"{self._path}, line {number}, is not an answer of a batch: choose another --output-file"
            ) from None
        key = id_hash(answer.custom_id)
        self.answered.add(key)
        if 200 <= answer.response.status_code < 300:
            self.failed.discard(key)
        else:
            self.failed.add(key)
