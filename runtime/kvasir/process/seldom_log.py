"""Logs a recurring problem at most once in a while."""

import logging
import time


class SeldomLog:
    """Writes lines of the same text or `about` at most once in `every` seconds."""

    def __init__(self, log: logging.Logger, every: float = 60.0, kinds: int = 256) -> None:
        self._log = log
        self._every = every
        self._kinds = kinds
        self._last: dict[str, float] = {}

    def info(self, text: str, about: str = "") -> None:
        self._write(logging.INFO, text, about or text)

    def warning(self, text: str, about: str = "") -> None:
        self._write(logging.WARNING, text, about or text)

    def _write(self, level: int, text: str, key: str) -> None:
        now = time.monotonic()
        if key in self._last and now - self._last[key] < self._every:
            return
        if len(self._last) >= self._kinds:
            # A peer can invent names; the price is one more line each.
            self._last.clear()
        self._last[key] = now
        self._log.log(level, "%s", text)
