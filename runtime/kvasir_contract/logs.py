"""The log format of every process: lines of text or JSON on standard error."""

import json
import logging
import re
import sys
import time
from typing import Final


class _Formatter(logging.Formatter):
    # formatted once a second, since handlers call this under their lock

    converter = staticmethod(time.gmtime)
    _second = -1
    _time = ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, super().formatTime(record, datefmt)
        return self._time


class TextFormatter(_Formatter):
    def __init__(self, process: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process} %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )


class JsonFormatter(_Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


# only warnings, even at level debug: other lines may contain a Secret
_QUIET: Final = (
    "httpx",
    "httpx2",
    "httpcore",
    "asyncio",
    "aiohttp",
    "huggingface_hub",
    "urllib3",
    "kopf",
    "kubernetes",
)
_TEXT_LINE: Final = re.compile(r"\S+Z (?P<level>[A-Z]+) +\S+ (?P<message>.+)")


def read_line(line: str) -> tuple[str, str] | None:
    """Return level ("warning") and message of a formatted line, or None."""
    if match := _TEXT_LINE.fullmatch(line):
        return match["level"].lower(), match["message"]
    if line.startswith("{"):
        try:
            record = json.loads(line)
            return str(record["level"]), str(record["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    return None


def setup_logging(process: str, level: str = "info", format: str = "text") -> None:
    record_origins(False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def record_origins(wanted: bool) -> None:
    # these take a fifth of the time of a line
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = wanted


def current_format() -> str:
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return "json" if any(isinstance(each, JsonFormatter) for each in formatters) else "text"
