"""The frame of a client program: it runs the replays and prints one line of JSON for each.

    python PROGRAM BASE_URL API_KEY [REPLAY ...]

Without names, all replays run. Each is a function whose failure is an exception.
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

Error = TypeVar("Error", bound=Exception)

BASE_URL: Final = sys.argv[1]
API_KEY: Final = sys.argv[2]
MODEL: Final = "demo"
QUESTION: Final = "What is a pod?"
CONTEXT: Final = 2048
"""Tokens that the demo model can attend to."""
LONG: Final = "pod " * (2 * CONTEXT)
"""A text that does not fit into it."""


def run(*replays: Callable[[], object]) -> None:
    names = sys.argv[3:]
    for replay in replays:
        if not names or replay.__name__ in names:
            print(json.dumps({"replay": replay.__name__, "error": _error_of(replay)}), flush=True)


def raised(kind: type[Error], ask: Callable[[], object]) -> Error:
    """The error that `ask` raises."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def _error_of(replay: Callable[[], object]) -> str | None:
    try:
        result = replay()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except Exception as error:
        program = Path(sys.argv[0]).name
        frames = traceback.extract_tb(error.__traceback__)
        line = [frame.lineno for frame in frames if Path(frame.filename).name == program][-1]
        return f"{program}:{line}: {type(error).__name__}: {error}"
    return None
