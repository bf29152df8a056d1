"""One round: an engine is brought into a phase, one of its workers is killed or frozen, and the end is judged."""

import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.leftovers import MARK, left_shared_memory, shared_memory, wait_until_gone
from chaos.program import LIMIT_SECONDS, Program, Stream
from chaos.service import Service
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import find_failure
from kvasir_contract.reasons import Reason
from runtime.executor.processes import children_of

PHASES: Final = ("load", "warm-up", "prefill", "decode", "idle")
KINDS: Final = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_TEXTS: Final = {"kill": "was killed by SIGKILL", "freeze": r"(?:has been stopped for [\d.]+ s|is stopped)"}
_KILLED_TIMEOUT_SECONDS: Final = 60.0
"""--worker-timeout in rounds that kill: no timeout may be what ends the engine."""
_WITNESS_TOKENS: Final = 1900
_WITNESS_PARTS: Final = 5
"""Tokens of the stream on the other rank, after the end of the engine."""
_ANSWER_TOKENS: Final = 8
_MAX_REQUESTS: Final = 8
_SEND_SECONDS: Final = 1.0
_WORDS: Final = ("engine", "frontend", "block", "token", "model", "rank", "step", "cache", "worker", "pod", "node")


@dataclass(frozen=True)
class Plan:
    phase: str
    kind: str
    victim: int
    """The rank of the worker that gets the signal."""
    held: str
    """The rank that waits in the phase, while the victim waits for it in an exchange, or "all"."""
    options: tuple[str, ...]
    """The layout of the engine."""
    num_workers: int
    worker_timeout: float
    """In rounds that freeze."""
    limit: float
    """Seconds for the end after a kill, and in addition to the timeout after a freeze."""

    @property
    def max_seconds(self) -> float:
        return self.limit + (self.worker_timeout if self.kind == "freeze" else 0.0)


@dataclass
class Outcome:
    plan: Plan
    seconds: float | None = None
    """From the signal to the exit of the engine; None: there was no signal, or no exit."""
    noticed: float | None = None
    """From the signal to the log line with the failure."""
    closed: float | None = None
    """From the signal to the engine's last log line, after which only the interpreter ends."""
    problems: list[str] = field(default_factory=list)

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)


class Round:
    """One engine's life. Call `run` once."""

    def __init__(self, service: Service, plan: Plan, seed: str) -> None:
        self._service = service
        self._plan = plan
        self._seed = seed
        self._random = random.Random(seed)
        self._requests: list[Stream] = []

    def run(self) -> Outcome:
        outcome = Outcome(self._plan)
        witness = self._service.stream(self._prompt(), _WITNESS_TOKENS)  # only the other rank is there
        try:
            self._run(outcome, witness)
        except (
            TimeoutError,
            RuntimeError,
        ) as error:  # the phase was not reached, for example
            outcome.problems.append(str(error))
        finally:
            witness.stop()
        return outcome

    def _run(self, outcome: Outcome, witness: Stream) -> None:
        memory = shared_memory()
        with tempfile.TemporaryDirectory() as held, tempfile.TemporaryDirectory() as own:
            with self._engine(Path(held), Path(own)) as engine:
                workers = self._reach(engine, Path(held))
                outcome.require(witness.is_running, f"the stream on the other rank ended early: {witness.error}")
                began = self._signal(engine, workers, outcome)
                seen = witness.num_parts
                self._judge_end(engine, outcome, began)
            outcome.problems += [f"the file {name} is left" for name in os.listdir(own)]
        outcome.problems += [f"/dev/shm/{name} is left" for name in left_shared_memory(memory)]
        more = witness.wait_for_parts(seen + _WITNESS_PARTS, LIMIT_SECONDS)
        outcome.require(more, f"the stream on the other rank stopped: {witness.error or witness.num_parts}")
        self._judge_service(outcome)

    @contextmanager
    def _engine(self, held: Path, own: Path) -> Iterator[Program]:
        plan = self._plan
        timeout = plan.worker_timeout if plan.kind == "freeze" else _KILLED_TIMEOUT_SECONDS
        engine = self._service.engine(
            0,
            [*plan.options, "--worker-timeout", f"{timeout}s"],
            {
                MARK: self._seed,
                "CHAOS_PHASE": plan.phase,
                "CHAOS_HELD": plan.held,
                "CHAOS_FOLDER": str(held),
                "TMPDIR": str(own),
            },
        )
        try:
            yield engine
        finally:
            if engine.wait(0) is None:
                engine.kill()

    # --------------------------------------------------------------------------------------- towards the signal

    def _reach(self, engine: Program, held: Path) -> list[int]:
        phase = self._plan.phase
        if phase in ("prefill", "decode", "idle"):
            engine.line("Ready after")
            self._service.wait_for_ranks([0, 1])
        if phase in ("prefill", "decode"):
            while not self._are_held(held, _SEND_SECONDS):
                if len(self._requests) == _MAX_REQUESTS:
                    raise TimeoutError(f"the frontend sent none of {_MAX_REQUESTS} requests to the engine")
                self._requests.append(self._service.stream(self._prompt(), _ANSWER_TOKENS))
        elif phase != "idle" and not self._are_held(held, LIMIT_SECONDS):
            raise TimeoutError(f"no worker reached the phase {phase}:\n{engine.log}")
        workers = children_of(engine.pid)
        if len(workers) != self._plan.num_workers:
            raise RuntimeError(f"{len(workers)} instead of {self._plan.num_workers} workers:\n{engine.log}")
        return workers

    def _are_held(self, folder: Path, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        if self._plan.phase in ("prefill", "decode") and not self._requests:
            return False
        while len(os.listdir(folder)) < self._plan.num_workers:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _signal(self, engine: Program, workers: list[int], outcome: Outcome) -> float:
        plan = self._plan
        began = time.monotonic()
        os.kill(workers[plan.victim], KINDS[plan.kind])
        code = engine.wait(plan.max_seconds + LIMIT_SECONDS)
        outcome.seconds = None if engine.ended_at is None else engine.ended_at - began
        outcome.require(code is not None, "the engine did not end")
        outcome.require(code in (None, ExitCode.FAILED), f"the engine ended with exit code {code}")
        return began

    # ---------------------------------------------------------------------------------------------- the verdict

    def _judge_end(self, engine: Program, outcome: Outcome, began: float) -> None:
        plan, log = self._plan, engine.log
        limit = plan.max_seconds
        if outcome.seconds is not None and outcome.seconds > limit:
            outcome.problems.append(f"the end took {outcome.seconds:.2f} s, more than {limit:g} s")
        left = wait_until_gone(self._seed, began + limit)
        outcome.require(not left, f"processes {left} are left")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        outcome.require(names_failure(log, plan), f"no line names worker {plan.victim} and phase {plan.phase}")
        failure = find_failure(log)
        crashed = failure is not None and failure.reason is Reason.CRASH_LOOPING
        outcome.require(crashed, f"the engine reported {failure}")
        outcome.require("Traceback" not in log, "the log has a traceback")
        if outcome.problems:
            outcome.problems.append(log)
        outcome.noticed = engine.seconds_until("all workers are killed", began)
        outcome.closed = engine.seconds_until("ended after", began)

    def _judge_service(self, outcome: Outcome) -> None:
        self._service.wait_for_ranks([1])
        for request in self._requests:
            ended = request.wait(LIMIT_SECONDS)
            outcome.require(ended, "a request of the lost rank hangs")
            outcome.require(not request.error, f"a request of the lost rank failed: {request.error}")
        again = self._service.stream(self._prompt(), _ANSWER_TOKENS)
        answered = again.wait(LIMIT_SECONDS) and not again.error and again.text
        outcome.require(bool(answered), f"a request after the loss failed: {again.error}")

    def _prompt(self) -> str:
        """Return a text that no other request has: the routing prefers the rank that has its KV blocks."""
        return " ".join(self._random.choices(_WORDS, k=12))


def names_failure(log: str, plan: Plan) -> bool:
    pattern = rf"worker {plan.victim}\b(?: \([^)]*\))? {_TEXTS[plan.kind]} in phase {plan.phase}\b"
    return any("ERROR" in line and re.search(pattern, line) for line in log.splitlines())
