"""TrialProcess: compiles grammars that may be bombs (`python -m kvasir.engine.grammar.trial_process`).

It builds the tokenizer once and forks for each grammar. A fork that exceeds its memory or time ends alone. The
process ends with the engine.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import BinaryIO, Final, NoReturn

import llguidance
import msgspec

from kvasir.engine.grammar.compiling import compile_adapted, probe
from kvasir.engine.grammar.trial_messages import (
    MAX_RUNNING_TRIALS,
    MAX_TRIAL_BYTES,
    MAX_TRIAL_CPU_SECONDS,
    MAX_TRIAL_SECONDS,
    Ready,
    Trial,
    Verdict,
    read_message,
    write_message,
)
from kvasir.engine.grammar.vocabulary import Vocabulary, VocabularyError, build_tokenizer
from kvasir.grammar_bounds import BadGrammar
from kvasir.request.constraint import Grammar

_PR_SET_PDEATHSIG: Final = 1
_NICENESS: Final = 5
_SIMPLIFY: Final = "simplify it: fewer alternatives, optional parts and counted repetitions"
_TOO_SLOW: Final = f"the grammar takes more than {MAX_TRIAL_CPU_SECONDS} s to compile: {_SIMPLIFY}"
_TOO_BUSY: Final = (
    f"the grammar takes more than {MAX_TRIAL_SECONDS:.0f} s to compile on this machine, which is busy: send it "
    "again later, or simplify it"
)
_TOO_LARGE: Final = f"the grammar needs more than {MAX_TRIAL_BYTES >> 20} MiB to compile: {_SIMPLIFY}"


@dataclass(frozen=True)
class _Fork:
    number: int
    pid: int
    pipe: int
    deadline: float


class TrialProcess:
    def __init__(self, tokenizer: llguidance.LLTokenizer, requests: BinaryIO, answers: BinaryIO) -> None:
        self._tokenizer = tokenizer
        self._requests = requests
        self._answers = answers
        self._decode = msgspec.msgpack.Decoder(Trial).decode
        self._waiting: deque[Trial] = deque()
        self._forks: dict[int, _Fork] = {}

    def run(self) -> None:
        while True:
            pipes = [self._requests.fileno(), *self._forks]
            ready, _, _ = select.select(pipes, [], [], self._patience())
            for pipe in ready:
                if pipe in self._forks:
                    self._finish(self._forks[pipe])
            if self._requests.fileno() in ready:
                packed = read_message(self._requests)
                if packed is None:
                    return
                self._waiting.append(self._decode(packed))
            self._end_late_forks()
            while self._waiting and len(self._forks) < MAX_RUNNING_TRIALS:
                self._start(self._waiting.popleft())

    def close(self) -> None:
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGKILL)

    def _patience(self) -> float | None:
        deadlines = [fork.deadline for fork in self._forks.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _start(self, trial: Trial) -> None:
        answer, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try_grammar(self._tokenizer, trial.grammar, end)
        os.close(end)
        self._forks[answer] = _Fork(trial.number, pid, answer, time.monotonic() + MAX_TRIAL_SECONDS)

    def _end_late_forks(self) -> None:
        now = time.monotonic()
        for fork in [fork for fork in self._forks.values() if fork.deadline <= now]:
            os.kill(fork.pid, signal.SIGKILL)
            self._forget(fork)
            self._answer(Verdict(fork.number, _TOO_BUSY, lasting=False))

    def _finish(self, fork: _Fork) -> None:
        answer = os.read(fork.pipe, select.PIPE_BUF)
        status = self._forget(fork)
        if answer:
            self._answer(Verdict(fork.number, answer[1:].decode(errors="replace")))
        else:
            self._answer(Verdict(fork.number, cause_of_end(status)))

    def _forget(self, fork: _Fork) -> int:
        del self._forks[fork.pipe]
        os.close(fork.pipe)
        return os.waitpid(fork.pid, 0)[1]

    def _answer(self, verdict: Verdict) -> None:
        write_message(self._answers, verdict)


def try_grammar(tokenizer: llguidance.LLTokenizer, grammar: Grammar, pipe: int) -> NoReturn:
    die_with_parent()
    os.closerange(0, 3)  # the engine's pipes; Rust would log an abort
    limit_memory()
    signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_CPU_SECONDS)  # SIGPROF ends this process
    refusal = ""
    try:
        probe(tokenizer, compile_adapted(tokenizer, grammar))
    except BadGrammar as error:
        refusal = str(error)
    except MemoryError:
        refusal = _TOO_LARGE
    except BaseException as error:  # Rust panics are not Exceptions
        refusal = f"the grammar cannot be compiled ({type(error).__name__}: {error}): simplify it"
    os.write(pipe, b"=" + refusal.encode()[: select.PIPE_BUF - 1])
    os._exit(0)


def cause_of_end(status: int) -> str:
    """Return the refusal for a trial without an answer."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGABRT, signal.SIGKILL):  # from the allocator, and from the kernel
        return _TOO_LARGE
    if number == signal.SIGPROF:
        return _TOO_SLOW
    if number == signal.SIGSEGV:
        return "the grammar is nested too deeply to compile: flatten it"
    how = signal.Signals(number).name if number else f"exit code {os.waitstatus_to_exitcode(status)}"
    return f"compiling the grammar has ended its process ({how}): simplify it"


def limit_memory() -> None:
    # Mapping more address space fails at once, touched or not.
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_TRIAL_BYTES, used + MAX_TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the kernel's OOM killer prefers this process to the engine


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the engine handles them, and closes the pipe
    die_with_parent()
    os.nice(_NICENESS)
    requests, answers = os.fdopen(0, "rb", buffering=0), sys.stdout.buffer  # `select` sees no buffer
    packed = read_message(requests)
    if packed is None:
        return
    try:
        tokenizer = build_tokenizer(msgspec.msgpack.decode(packed, type=Vocabulary))
    except VocabularyError as error:
        write_message(answers, Ready(str(error)))
        return
    process = TrialProcess(tokenizer, requests, answers)
    with contextlib.suppress(BrokenPipeError):
        write_message(answers, Ready(""))
        process.run()
    process.close()
    os._exit(0)


if __name__ == "__main__":
    main()
