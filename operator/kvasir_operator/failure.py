"""Why a container ended or cannot start, from what the pod's status says of it: a reason and words for people.

Pure functions for pods.py. The processes' side of it: exit code 2 for what the user has to mend, 1 for the rest,
and the cause as the last error in the log, which Kubernetes copies into the status (terminationMessagePolicy).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_operator.reasons import Reason

USER_ERROR: Final = 2
"""Exit code of a process that cannot use what it was given."""
KILLED: Final = 137
MODEL_NOT_FOUND: Final = "model not found: "
"""What the processes put before the message of this failure."""

_PULL_FAILURES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_LOG_LINE: Final = re.compile(r"^\S+Z (?P<level>[A-Z]+) +\S+ (?P<text>.*)$")
_REFUSAL: Final = re.compile(r"^kvasir \w+: (?P<text>.*)$")
"""What the command says of its options, before there is a log."""
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
"""The last line of a traceback."""
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|cannot allocate memory", re.IGNORECASE
)


@dataclass(frozen=True)
class Failure:
    reason: Reason
    message: str


def of_waiting(waiting: Mapping[str, Any], image: str) -> Failure | None:
    """Of a container that is not there yet; None if that is nothing to worry about."""
    why, message = waiting.get("reason", ""), waiting.get("message", "")
    if why in _PULL_FAILURES:
        detail = f" ({message})" if message else ""
        return Failure(
            Reason.IMAGE_PULL_FAILED,
            f"image {image} cannot be pulled{detail}: check spec.image, spec.imagePullSecrets and the registry",
        )
    if why == "CreateContainerConfigError":
        return Failure(Reason.INVALID_SPEC, f"{message}: create it, or change the field of spec that names it")
    if why in ("CreateContainerError", "RunContainerError"):
        return Failure(Reason.CRASH_LOOPING, f"the container cannot be started ({message})")
    return None


def of_terminated(terminated: Mapping[str, Any]) -> Failure | None:
    """Of a container that ended; None if it ended well."""
    code = terminated.get("exitCode", 0)
    if code == 0:
        return None
    said = last_words(terminated.get("message", ""))
    if terminated.get("reason") == "OOMKilled":
        return Failure(
            Reason.OUT_OF_MEMORY,
            "it needed more memory than its limit and was killed: raise pod.resources.limits.memory, or lower "
            "engine.kvCache.memory, maxModelLen or maxNumSeqs",
        )
    if said.startswith(MODEL_NOT_FOUND):
        return Failure(Reason.MODEL_NOT_FOUND, said.removeprefix(MODEL_NOT_FOUND))
    if _OUT_OF_MEMORY.search(said):
        return Failure(Reason.OUT_OF_MEMORY, said)
    if code == USER_ERROR:
        return Failure(Reason.INVALID_SPEC, said or "it cannot use its settings: see the pod's log")
    ended = "it was killed (SIGKILL)" if code == KILLED else f"it ended with exit code {code}"
    return Failure(Reason.CRASH_LOOPING, f"{ended}: {said}" if said else f"{ended}: see the pod's log")


def last_words(log_tail: str) -> str:
    """The last error in the end of a log: its line, and below a traceback the line that names the exception.

    Lines are ours, as text or JSON, or of whatever else wrote there; without an error among them, the last line.
    """
    words, follows_error = "", False
    lines = [line for line in log_tail.splitlines() if line.strip()]
    for line in lines:
        level, text = _read(line)
        if level is not None:
            follows_error = level in ("ERROR", "CRITICAL")
            if follows_error:
                words = text
        elif follows_error and _EXCEPTION.match(line):
            words = f"{words.partition(' — ')[0]} — {line.strip()}"
    return words or (lines[-1].strip() if lines else "")


def _read(line: str) -> tuple[str | None, str]:
    """Level and text of a log line; None for the level of a line that is not one of ours."""
    if match := _LOG_LINE.match(line):
        return match["level"], match["text"]
    if match := _REFUSAL.match(line):
        return "ERROR", match["text"]
    if line.startswith("{"):
        try:
            record = json.loads(line)
            exception = str(record.get("exception", "")).strip().rpartition("\n")[2]
            text = f"{record['message']} — {exception}" if exception else str(record["message"])
            return str(record["level"]).upper(), text
        except (ValueError, KeyError, TypeError):
            return None, ""
    return None, ""
