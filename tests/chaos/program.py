"""A Kvasir process with its log, and requests that run in threads."""

import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

import httpx
from httpx_sse import EventSource

LIMIT_SECONDS = 120.0
"""Limit of a wait. A machine without other load needs a small part of it."""


class Program:
    """`kvasir ARGUMENTS` as a child process."""

    def __init__(self, arguments: list[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvasir.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **variables},
        )
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.ended_at: float | None = None
        """The time (monotonic) at which `wait` has seen the exit."""
        self._lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(line for _, line in self._lines)

    def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log. Raises TimeoutError, and RuntimeError if the process ends before."""
        self._wait(lambda: self._closed or self._find(pattern) is not None, pattern)
        if (found := self._find(pattern)) is None:
            raise RuntimeError(f"the process ended before it logged {pattern!r}:\n{self.log}")
        return found[1]

    def seconds_until(self, pattern: str, began: float) -> float | None:
        """Return the seconds from `began` (monotonic) to the first such line; None without one."""
        found = self._find(pattern)
        return None if found is None else found[0] - began

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process runs after `seconds`. The log is complete after the exit."""
        if not select.select([self._pidfd], [], [], seconds)[0]:
            return None
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        self._reader.join(LIMIT_SECONDS)
        return self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        if self.wait(LIMIT_SECONDS) is None:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append((time.monotonic(), line))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _find(self, pattern: str) -> tuple[float, re.Match[str]] | None:
        for moment, line in self._lines:
            if match := re.search(pattern, line):
                return moment, match
        return None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._news:
            if not self._news.wait_for(condition, LIMIT_SECONDS):
                raise TimeoutError(f"no {what!r} within {LIMIT_SECONDS:g} s:\n{self.log}")


class Stream:
    """A completion that is streamed into `text` by a thread."""

    def __init__(self, url: str, prompt: str, max_tokens: int) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.text = ""
        self.num_parts = 0
        self.error = ""
        self._url = url
        self._news = threading.Condition()
        self._ended = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return not self._ended

    def wait_for_parts(self, number: int, seconds: float) -> bool:
        """Return whether there are so many parts within this time."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self.num_parts >= number, seconds)
            return self.num_parts >= number

    def wait(self, seconds: float) -> bool:
        """Return whether the completion ends within this time."""
        with self._news:
            return self._news.wait_for(lambda: self._ended, seconds)

    def stop(self) -> None:
        """Hang up at the next part."""
        self._stopped = True
        self._thread.join(LIMIT_SECONDS)

    def _run(self) -> None:
        fields = {"prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}
        try:
            with httpx.stream(
                "POST", f"{self._url}/v1/completions", json=fields | {"stream": True}, timeout=LIMIT_SECONDS
            ) as answer:
                if answer.is_error:
                    answer.read()
                    self.error = answer.text
                else:
                    for event in EventSource(answer).iter_sse():
                        self._take(event.data)
                        if self._stopped:
                            break
        except httpx.HTTPError as error:
            self.error = repr(error)
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            return
        part = json.loads(data)
        with self._news:
            if "error" in part:
                self.error = str(part["error"])
            for choice in part.get("choices", ()):
                self.text += choice["text"]
            self.num_parts += 1
            self._news.notify_all()
