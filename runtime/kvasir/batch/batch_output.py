"""The output of a batch: a JSON object per line, in the order in which the answers came.

Each answer is one write to the file, so that a run that is interrupted leaves whole lines. A run that starts again
keeps the answers that stand, and cuts off a line that was written in part (a full disk, a crash of the machine).
"""

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType

import msgspec

from kvasir.batch.batch_input import id_hash
from kvasir.config.options import CommandFailed, ConfigError


class BatchResponse(msgspec.Struct):
    """The answer of the server to one request."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class _Answer(msgspec.Struct):
    id: str
    custom_id: str
    response: BatchResponse
    error: None = None
    """OpenAI's format has an error for requests that were not answered. Such requests are not in this file, so that
    the next run sends them."""


class _Answered(msgspec.Struct):
    custom_id: str
    response: dict[str, msgspec.Raw]


_decoder = msgspec.json.Decoder(_Answered)


class AnswerFile:
    """The output file; a context manager. No second process can write it at the same time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that cannot be written, is in use, or holds something else."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._lock()
            self.answered = self._read()
        except BaseException:
            os.close(self._file)
            raise
        """Hashes of the ids that have an answer."""

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, custom_id: str, response: BatchResponse) -> None:
        """Append an answer. Raises CommandFailed if the disk does not take it."""
        line = msgspec.json.encode(_Answer(f"batch_req_{secrets.token_hex(12)}", custom_id, response)) + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise CommandFailed(f"cannot write {self._path}: {error.strerror}") from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self._path} is being written by another run-batch: wait for it") from None

    def _read(self) -> set[int]:
        """Return the hashes of the answered ids, and set the file's position behind the last whole line."""
        answered, end = set[int](), 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                if line.strip():
                    answered.add(self._id_of(number, line))
        try:
            os.ftruncate(self._file, end)
        except OSError as error:  # a device, such as /dev/stdout
            raise ConfigError(f"{self._path} is not a regular file, which --output-file needs") from error
        os.lseek(self._file, end, os.SEEK_SET)
        return answered

    def _id_of(self, number: int, line: bytes) -> int:
        try:
            return id_hash(_decoder.decode(line).custom_id)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigError(
                f"{self._path}, line {number}, is not an answer of a batch: choose another --output-file"
            ) from None
