import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from kvasir.engine.grammar import trial_messages, trials
from kvasir.engine.grammar.trial_messages import Verdict
from kvasir.engine.grammar.trials import Trials, TrialsError
from kvasir.engine.grammar.vocabulary import Vocabulary, read_vocabulary
from kvasir.hub.source import fetch
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.grammar_bounds.refusals import schema_grammar
from runtime.hub import small_tokenizers as small

SLOW = schema_grammar({"type": "integer", "multipleOf": 1_000_003})
"""Takes 9 s to compile."""
GOOD = schema_grammar({"type": "object"})


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(fetch("demo://", weights=False), 2048, [0])


@pytest.fixture
def running(vocabulary: Vocabulary) -> Iterator[Trials]:
    started = Trials(vocabulary)
    yield started
    started.close()


def test_a_grammar_that_compiles_is_not_refused(running: Trials) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    assert "unclosed group" in running.verdict_on(Grammar(GrammarKind.REGEX, "(")).refusal


def test_a_slow_grammar_is_refused_and_the_process_goes_on(running: Trials) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    pid = running.pid
    assert f"more than {trial_messages.MAX_TRIAL_CPU_SECONDS} s to compile" in running.verdict_on(SLOW).refusal
    assert running.verdict_on(GOOD).refusal == ""
    assert running.pid == pid


def test_a_large_grammar_is_refused(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; from kvasir.engine.grammar import trial_process as p\n"
        "p.probe = p.compile_adapted = lambda *a: bytearray(2 * p.MAX_TRIAL_BYTES)\np.main()"
    )
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    try:
        assert f"more than {trial_messages.MAX_TRIAL_BYTES >> 20} MiB" in started.verdict_on(GOOD).refusal
    finally:
        started.close()


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.abort()", "MiB to compile"),
        ("os.kill(os.getpid(), 9)", "MiB to compile"),
        ("os.kill(os.getpid(), 11)", "nested too deeply"),
        ("os._exit(3)", "exit code 3"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_the_end_of_a_trial_is_a_refusal(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, end: str, message: str
) -> None:
    program = (
        "import os; from kvasir.engine.grammar import trial_process as p\n"
        "real = p.compile_adapted\n"
        "def compile_adapted(tokenizer, grammar):\n"
        f"    if 'bomb' in grammar.text: {end}\n"
        "    return real(tokenizer, grammar)\n"
        "p.compile_adapted = compile_adapted\np.main()"
    )
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    try:
        assert message in started.verdict_on(schema_grammar({"const": "bomb"})).refusal
        assert started.verdict_on(GOOD).refusal == ""
    finally:
        started.close()


def test_a_bomb_does_not_hold_up_other_grammars(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import time; from kvasir.engine.grammar import trial_process as p\n"
        "p.MAX_TRIAL_SECONDS = 600\n"
        "real = p.compile_adapted\n"
        "p.compile_adapted = lambda t, g: time.sleep(600) if 'bomb' in g.text else real(t, g)\np.main()"
    )
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    bomb = threading.Thread(target=started.verdict_on, args=[schema_grammar({"const": "bomb"})])
    bomb.start()
    while not _children(started.pid):
        time.sleep(0.01)
    assert started.verdict_on(GOOD).refusal == ""
    assert bomb.is_alive()
    started.close()
    bomb.join()


def test_more_grammars_than_run_at_once_are_all_tried(running: Trials) -> None:
    refusals: list[str] = []
    threads = [
        threading.Thread(
            target=lambda n=number: refusals.append(running.verdict_on(schema_grammar({"const": n})).refusal)
        )
        for number in range(5 * trial_messages.MAX_RUNNING_TRIALS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == [""] * len(threads)


def test_a_process_that_has_died_is_started_again(running: Trials) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    first = running.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert running.verdict_on(GOOD).refusal == ""
    assert running.pid != first


def test_a_death_during_a_trial_is_noticed(running: Trials) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    first = running.pid
    assert first is not None
    threading.Timer(0.2, os.kill, [first, signal.SIGKILL]).start()
    assert "s to compile" in running.verdict_on(SLOW).refusal  # the second process has tried it again
    assert running.pid not in (None, first)


@pytest.mark.parametrize("size", [0, 200_000], ids=["small", "larger than the pipe"])
def test_a_process_that_is_stuck_is_replaced(running: Trials, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    first = running.pid
    assert first is not None
    monkeypatch.setattr(trials, "STUCK_SECONDS", 1.0)
    os.kill(first, signal.SIGSTOP)
    refusals: list[str] = []
    grammars = [Grammar(GOOD.kind, GOOD.text + " " * size), schema_grammar({"const": "next"})]
    threads = [
        threading.Thread(target=lambda it=grammar: refusals.append(running.verdict_on(it).refusal))
        for grammar in grammars
    ]
    for thread in threads:
        thread.start()
    _wait_until_gone(first)
    monkeypatch.setattr(trials, "STUCK_SECONDS", 60.0)
    for thread in threads:
        thread.join()
    assert refusals == ["", ""]


@pytest.mark.parametrize("works", [True, False])
def test_a_process_that_answers_others_is_not_stuck(works: bool) -> None:
    killed: list[bool] = []

    class Child(trials._Child):
        def __init__(self) -> None:
            self._answered = 0
            self.ended = threading.Event()

        def kill(self) -> None:
            killed.append(True)
            self.ended.set()

    class Late(Future[Verdict | None]):
        waits = 0

        def result(self, timeout: float | None = None) -> Verdict | None:
            self.waits += 1
            child._answered += works
            if self.waits < 10:
                raise TimeoutError
            return None

    child = Child()
    assert child._wait_for(Late()) is None
    assert killed == ([] if works else [True])


def test_close_ends_the_process_and_what_waits(vocabulary: Vocabulary) -> None:
    started = Trials(vocabulary)
    assert started.verdict_on(GOOD).refusal == ""
    pid = started.pid
    threading.Timer(0.2, started.close).start()
    assert started.verdict_on(SLOW).refusal == "this engine ends: send the request again"
    assert started.verdict_on(GOOD).refusal == "this engine ends: send the request again"
    assert pid is not None
    _wait_until_gone(pid)


def test_signals_of_a_terminal_do_not_end_it(running: Trials) -> None:
    assert running.verdict_on(GOOD).refusal == ""
    pid = running.pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert running.verdict_on(schema_grammar({"const": 2})).refusal == ""
    assert running.pid == pid


def test_it_ends_with_its_parent(vocabulary: Vocabulary) -> None:
    program = (
        "import sys, os, msgspec; from kvasir.engine.grammar.trials import Trials, Vocabulary\n"
        "from kvasir.request.constraint import Grammar\n"
        "trials = Trials(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Vocabulary))\n"
        "print(repr(trials.verdict_on(Grammar('regex', 'a')).refusal), trials.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=msgspec.msgpack.encode(vocabulary), capture_output=True
    )
    refusal, pid = done.stdout.split()
    assert refusal == b"''"
    _wait_until_gone(int(pid))


def test_trials_end_with_their_process(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import time; from kvasir.engine.grammar import trial_process as p\n"
        "p.MAX_TRIAL_SECONDS = 60\n"
        "p.compile_adapted = lambda *a: time.sleep(60)\np.main()"
    )
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    waiting = threading.Thread(target=started.verdict_on, args=[GOOD])
    waiting.start()
    while not (forks := _children(started.pid)):
        time.sleep(0.01)
    time.sleep(0.2)  # the fork has set itself up
    started.close()
    waiting.join()
    for fork in forks:
        _wait_until_gone(fork)


def test_a_tokenizer_that_cannot_be_used_is_an_error() -> None:
    started = Trials(Vocabulary(small.word_piece().to_str(), 200, (0,)))
    with pytest.raises(TrialsError, match="structured output is not possible"):
        started.verdict_on(GOOD)
    started.close()


def test_the_process_does_not_import_torch() -> None:
    program = "import sys, kvasir.engine.grammar.trial_process; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).stdout == b"False\n"


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _children(pid: int | None) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_verdict_lasts_unless_the_machine_is_busy(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import time; from kvasir.engine.grammar import trial_process as p\n"
        "p.MAX_TRIAL_SECONDS = 1\n"
        "p.probe = p.compile_adapted = lambda *a: time.sleep(60)\np.main()"
    )
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    verdict = started.verdict_on(GOOD)
    started.close()
    assert "busy" in verdict.refusal
    assert not verdict.lasting
    assert not started.verdict_on(GOOD).lasting


def test_a_refusal_for_its_work_lasts(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from kvasir.engine.grammar import trial_process as p\np.main()"
    monkeypatch.setattr(trials, "_COMMAND", (sys.executable, "-c", program))
    started = Trials(vocabulary)
    verdict = started.verdict_on(SLOW)
    started.close()
    assert f"more than {trial_messages.MAX_TRIAL_CPU_SECONDS} s to compile" in verdict.refusal
    assert verdict.lasting
