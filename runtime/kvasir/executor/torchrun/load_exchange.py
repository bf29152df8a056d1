"""Failure reports between torchrun's ranks while they load: none waits for a failed one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import IntEnum
from typing import Final

_PAUSE_SECONDS: Final = 0.5
_FAIL_SECONDS: Final = 5.0  # for the others to receive a failure


class LoadState(IntEnum):
    LOADING = 0
    LOADED = 1
    FAILED = 2


class LoadExchange:
    """Made by each rank when it begins to load. Nothing else may use `gather` meanwhile."""

    def __init__(self, gather: Callable[[int], list[int]]) -> None:
        """`gather` exchanges a number between all ranks, and raises if one has ended."""
        self._gather = gather
        self._state = LoadState.LOADING
        self._changed = threading.Event()
        self._states: Future[list[int]] = Future()
        threading.Thread(target=self._run, name="loading", daemon=True).start()

    def finish(self) -> list[int]:
        """Return the failed ranks, once there is one or all have loaded. Raises the errors of `gather`."""
        self._change(LoadState.LOADED)
        states = self._states.result()
        return [rank for rank, state in enumerate(states) if state == LoadState.FAILED]

    def fail(self) -> None:
        self._change(LoadState.FAILED)
        with suppress(Exception):
            self._states.result(_FAIL_SECONDS)

    def _change(self, state: LoadState) -> None:
        self._state = state
        self._changed.set()

    def _run(self) -> None:
        try:
            states = self._gather(self._state)
            while LoadState.LOADING in states and LoadState.FAILED not in states:
                self._changed.wait(_PAUSE_SECONDS)
                states = self._gather(self._state)
            self._states.set_result(states)
        except Exception as error:
            self._states.set_exception(error)
