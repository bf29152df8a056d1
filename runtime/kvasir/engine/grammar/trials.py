"""Trials: the engine's side of the trial process, which starts with the first grammar."""

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import BinaryIO, Final, cast

import msgspec

from kvasir.engine.grammar.trial_messages import (
    MAX_TRIAL_SECONDS,
    Ready,
    Trial,
    Verdict,
    read_message,
    write_message,
)
from kvasir.engine.grammar.vocabulary import Vocabulary
from kvasir.request.constraint import Grammar

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0
STUCK_SECONDS: Final = MAX_TRIAL_SECONDS + 10  # without an answer to a trial: the process is replaced
_GRACE_SECONDS: Final = 2.0  # this process may have been stopped itself
_COMMAND: Final = (sys.executable, "-P", "-m", "kvasir.engine.grammar.trial_process")
_ATTEMPTS: Final = 2
_DIED: Final = (
    "the process that compiles grammars has died or was stuck twice: send the grammar again later, or simplify it"
)
_CLOSED: Final = "this engine ends: send the request again"


class TrialsError(Exception):
    """The trial process cannot be used."""


class Trials:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and not child.ended.is_set() else None

    def start(self) -> None:
        self._running_child()

    def verdict_on(self, grammar: Grammar) -> Verdict:
        """Compile an adapted grammar in the child. Raises TrialsError."""
        for _ in range(_ATTEMPTS):
            child = self._running_child()
            if child is None:
                return Verdict(0, _CLOSED, lasting=False)
            verdict = child.run(grammar)
            if verdict is not None:
                return verdict
        return Verdict(0, _CLOSED if self._closed else _DIED, lasting=False)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()

    def _running_child(self) -> "_Child | None":
        with self._lock:
            if self._closed:
                return None
            if self._child is None or self._child.ended.is_set():
                if self._child is not None:
                    log.warning("the process that compiles grammars has died: starting it again")
                self._child = _Child(self._vocabulary)
            return self._child


class _Child:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pid = 0
        self.ended = threading.Event()
        self._ready = threading.Event()
        self._failure = ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._results: dict[int, Future[Verdict | None]] = {}
        # to write, at the pace of the process; None is the last one
        self._trials: queue.SimpleQueue[Trial | None] = queue.SimpleQueue()
        self._numbers = 0
        self._answered = 0
        started = threading.Event()
        # Linux kills the process when the thread that started it ends, so that thread waits for it.
        threading.Thread(target=self._own, args=[vocabulary, started], name="grammar trials", daemon=True).start()
        started.wait()

    def run(self, grammar: Grammar) -> Verdict | None:
        """Return the verdict; None if the process died or is stuck. Raises TrialsError."""
        if not self._ready.wait(START_SECONDS):
            self.kill()
            raise TrialsError(f"the process that compiles grammars did not start within {START_SECONDS:.0f} s")
        if self._failure:
            raise TrialsError(self._failure)
        result: Future[Verdict | None] = Future()
        with self._lock:
            if self.ended.is_set():
                return None
            self._numbers += 1
            number = self._numbers
            self._results[number] = result
            self._trials.put(Trial(number, grammar))
        return self._wait_for(result)

    def _wait_for(self, result: "Future[Verdict | None]") -> Verdict | None:
        # A working process answers each trial within MAX_TRIAL_SECONDS.
        while True:
            answered = self._answered
            for seconds in (STUCK_SECONDS, _GRACE_SECONDS):
                with contextlib.suppress(TimeoutError):
                    return result.result(seconds)
            if self._answered == answered and not self.ended.is_set():
                log.warning("the process that compiles grammars is stuck: ending it")
                self.kill()  # its thread ends the result

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _own(self, vocabulary: Vocabulary, started: threading.Event) -> None:
        try:
            try:
                self._process = _start()
                self.pid = self._process.pid
            except OSError as error:
                self._failure = f"the process that compiles grammars cannot be started: {error.strerror or error}"
                return
            finally:
                started.set()
            self._read(vocabulary, self._process)
        finally:
            self._end()

    def _read(self, vocabulary: Vocabulary, process: subprocess.Popen[bytes]) -> None:
        requests, answers = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
        with contextlib.suppress(BrokenPipeError):
            write_message(requests, vocabulary)
        packed = read_message(answers)
        if packed is None:
            return
        self._failure = msgspec.msgpack.decode(packed, type=Ready).failure
        self._ready.set()
        threading.Thread(target=self._write, args=[requests], name="grammars to try", daemon=True).start()
        while (packed := read_message(answers)) is not None:
            verdict = msgspec.msgpack.decode(packed, type=Verdict)
            with self._lock:
                result = self._results.pop(verdict.number)
                self._answered += 1
            result.set_result(verdict)

    def _write(self, requests: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError):  # the process has died
            while (trial := self._trials.get()) is not None:
                write_message(requests, trial)

    def _end(self) -> None:
        process = self._process
        self._trials.put(None)
        with self._lock:
            self.ended.set()
            results = list(self._results.values())
            self._results.clear()
        if process is not None:
            process.kill()
            process.wait()
            for file in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    cast(BinaryIO, file).close()
        self._ready.set()
        for result in results:
            result.set_result(None)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"},
        process_group=0,  # Ctrl-C in a terminal reaches only the engine
    )
