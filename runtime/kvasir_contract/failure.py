"""The cause of a process's failure: `{"reason", "message"}` as one line of JSON.

It is the last line of the log and the termination message, which Kubernetes copies into the pod's status.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir_contract.reasons import Reason

TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"
TERMINATION_MESSAGE_VARIABLE: Final = "KVASIR_TERMINATION_MESSAGE"  # without it, only the log gets the line
MAX_LINE_BYTES: Final = 4096  # with the newline, as in Kubernetes
MAX_MESSAGE_BYTES: Final = 2048  # JSON may need several bytes for one


@dataclass(frozen=True)
class Failure:
    reason: Reason
    message: str

    def to_json(self) -> str:
        size = MAX_MESSAGE_BYTES
        while True:
            line = json.dumps({"reason": self.reason, "message": cut(self.message, size)}, ensure_ascii=False)
            if len(line.encode()) < MAX_LINE_BYTES:
                return line
            size //= 2

    @classmethod
    def from_json(cls, line: str) -> "Failure | None":
        """Return None for other lines."""
        try:
            fields = json.loads(line)
            return cls(Reason(fields["reason"]), cut(str(fields["message"]), MAX_MESSAGE_BYTES))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def cut(text: str, max_bytes: int) -> str:
    """Truncate `text` with "…" to `max_bytes` (at least 3) of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode("utf-8", "ignore") + "…"


def report_failure(failure: Failure, environment: Mapping[str, str] = os.environ) -> None:
    line = failure.to_json()
    path = environment.get(TERMINATION_MESSAGE_VARIABLE)
    if path:
        try:
            Path(path).write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"cannot write the termination message {path}: {error.strerror}", file=sys.stderr)
    with contextlib.suppress(OSError):  # a full disk must not change the exit
        print(line, file=sys.stderr, flush=True)


def find_failure(text: str) -> Failure | None:
    """Return the last failure in a termination message or a log."""
    for line in reversed(text.split("\n")):  # not splitlines: JSON does not escape U+2028
        if line.startswith("{") and (failure := Failure.from_json(line)) is not None:
            return failure
    return None
