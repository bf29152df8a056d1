"""A service for a chaos run: a frontend, and the rank that survives."""

import os
import time
from pathlib import Path
from typing import Final

import httpx

from chaos.program import LIMIT_SECONDS, Program, Stream

PLUGIN: Final = Path(__file__).with_name("plugin")
_STEP_SECONDS: Final = 0.02
"""Tokens of the rank that survives: its streams have to last for a round."""
_PAUSE_SECONDS: Final = 0.02
_ENGINE_OPTIONS: Final = (
    *("--device", "cpu", "--dtype", "float32", "--kv-cache-memory-bytes", "64Mi"),
    *("--ops-port", "0", "--worker-cls", "chaos"),
)


class Service:
    """Rank 1 runs in one process until `close`. Rank 0 is started in every round."""

    def __init__(self, folder: Path) -> None:
        self._link = f"ipc://{folder}/link"
        self._variables = {"PYTHONPATH": f"{PLUGIN}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
        self.frontend = Program(
            ["frontend", "demo://", "--link", self._link, "--port", "0", "--ops-port", "0"], self._variables
        )
        self.url = self.frontend.line(r"listening on (http://\S+)")[1]
        self.survivor = self.engine(1, [], {"CHAOS_PAUSE": str(_STEP_SECONDS)})
        self.survivor.line("Ready after")
        self.wait_for_ranks([1])

    def engine(self, rank: int, options: list[str], variables: dict[str, str]) -> Program:
        arguments = ["engine", "demo://", "--link", self._link, "--data-parallel-rank", str(rank)]
        return Program([*arguments, *_ENGINE_OPTIONS, *options], {**self._variables, **variables})

    def ranks(self) -> list[int]:
        """The ranks that the frontend sends requests to."""
        engines = httpx.get(f"{self.url}/health", timeout=LIMIT_SECONDS).json()["engines"]
        return sorted(engine["rank"] for engine in engines if engine["usable"])

    def wait_for_ranks(self, ranks: list[int]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.ranks() != ranks:
            if time.monotonic() > deadline:
                raise TimeoutError(f"ranks {self.ranks()} are usable, not {ranks}:\n{self.frontend.log}")
            time.sleep(_PAUSE_SECONDS)

    def stream(self, prompt: str, max_tokens: int) -> Stream:
        return Stream(self.url, prompt, max_tokens)

    def close(self) -> None:
        self.survivor.end()
        self.frontend.end()
