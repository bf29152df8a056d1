"""Grammars: the constraints of requests, compiled once outside the loop, and cached.

A grammar is checked against the bounds, compiled in the trial process, and only then here. Requests take copies.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import llguidance

from kvasir.engine.engine_request import GuideError
from kvasir.engine.grammar.compiling import compile_adapted
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.engine.grammar.trials import Trials, TrialsError
from kvasir.engine.grammar.vocabulary import VocabularyError, build_tokenizer, read_vocabulary
from kvasir.grammar_bounds import BadGrammar, adapt_grammar
from kvasir.request.constraint import Grammar, OutputConstraint

MAX_CACHED_GRAMMARS: Final = 1_000
MAX_CACHED_BYTES: Final = 256 << 20
PASSING_SECONDS: Final = 10.0  # for a refusal that another trial might not repeat
_BYTES_PER_CHARACTER: Final = 200
_MIN_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class _Entry:
    compiled: llguidance.LLMatcher | str
    until: float | None


class CompiledGrammars:  # not thread-safe
    def __init__(
        self,
        max_grammars: int = MAX_CACHED_GRAMMARS,
        max_bytes: int = MAX_CACHED_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[Grammar, _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, grammar: Grammar) -> llguidance.LLMatcher | str | None:
        entry = self._entries.get(grammar)
        if entry is None:
            return None
        if entry.until is not None and self._clock() >= entry.until:
            self._drop(grammar)
            return None
        self._entries.move_to_end(grammar)
        return entry.compiled

    def put(self, grammar: Grammar, compiled: llguidance.LLMatcher | str, lasting: bool = True) -> None:
        if grammar in self._entries:
            self._drop(grammar)
        self._bytes += estimated_bytes(grammar)
        self._entries[grammar] = _Entry(compiled, None if lasting else self._clock() + PASSING_SECONDS)
        while len(self._entries) > self._max_grammars or (self._bytes > self._max_bytes and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def _drop(self, grammar: Grammar) -> None:
        del self._entries[grammar]
        self._bytes -= estimated_bytes(grammar)


def estimated_bytes(grammar: Grammar) -> int:
    return _MIN_BYTES + _BYTES_PER_CHARACTER * len(grammar.text)


log = logging.getLogger(__name__)

MAX_COMPILING: Final = 32  # threads, which wait for the trial process
_MAX_TOKENS_AT_ONCE: Final = 256  # of a resumed output, accepted in the calling thread if the grammar is cached


class Grammars:
    def __init__(
        self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int], wake: Callable[[str], None]
    ) -> None:
        # `wake` gets a request's id in any thread
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(token for token in eos_token_ids if token < vocab_size)
        self._wake = wake
        self._compiler = _Compiler(tokenizer, vocab_size, eos_token_ids)
        self._threads = ThreadPoolExecutor(MAX_COMPILING, "grammar")
        self._lock = threading.Lock()
        self._cache = CompiledGrammars()
        self._compiling: dict[Grammar, list[_Request]] = {}
        self._outcomes: dict[str, _Request] = {}

    def begin(self, request_id: str, constraint: OutputConstraint, output_token_ids: Sequence[int]) -> None:
        """Prepare the guide of a request whose output begins with these tokens. Any thread.

        `wake` may be called before this method returns.
        """
        request = _Request(request_id, constraint, output_token_ids)
        grammar = constraint.grammar
        with self._lock:
            self._outcomes[request_id] = request
            compiled = self._cache.get(grammar) if grammar is not None else None
            if grammar is not None and compiled is None:
                if grammar in self._compiling:
                    self._compiling[grammar].append(request)
                    return
                self._compiling[grammar] = [request]
        if grammar is not None and compiled is None:
            self._threads.submit(self._compile, grammar)
        elif len(output_token_ids) > _MAX_TOKENS_AT_ONCE:
            self._threads.submit(self._decide, request, compiled)
        else:
            self._decide(request, compiled)

    def outcome(self, request_id: str) -> OutputGuide | str | None:
        """Return the guide or a refusal; None if it is open or the request unknown."""
        with self._lock:
            request = self._outcomes.get(request_id)
            return None if request is None else request.outcome

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._outcomes.pop(request_id, None)

    def close(self) -> None:
        self._compiler.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> None:
        with self._lock:
            if not any(self._is_open(request) for request in self._compiling[grammar]):
                del self._compiling[grammar]  # all have ended meanwhile
                return
        try:
            compiled, lasting = self._compiler.compile(grammar)
        except BaseException as error:  # Rust panics are not Exceptions
            log.exception("compiling a grammar has failed")
            compiled, lasting = _defect(error), False
        with self._lock:
            self._cache.put(grammar, compiled, lasting)
            waiting = self._compiling.pop(grammar)
        for request in waiting:
            self._decide(request, compiled)

    def _decide(self, request: "_Request", compiled: llguidance.LLMatcher | str | None) -> None:
        try:
            outcome = compiled if isinstance(compiled, str) else self._guide(request, compiled)
        except BaseException as error:  # the request must not wait for ever
            log.exception("making the guide of a request has failed")
            outcome = _defect(error)
        with self._lock:
            if not self._is_open(request):
                return  # forgotten meanwhile
            request.outcome = outcome
        self._wake(request.request_id)

    def _is_open(self, request: "_Request") -> bool:
        return self._outcomes.get(request.request_id) is request

    def _guide(self, request: "_Request", compiled: llguidance.LLMatcher | None) -> OutputGuide | str:
        guide = OutputGuide(
            request.constraint,
            None if compiled is None else compiled.deep_copy(),
            vocab_size=self._vocab_size,
            known_tokens=self._compiler.known_tokens,
            eos_token_ids=self._eos_token_ids,
        )
        try:
            guide.accept(request.output_token_ids)
        except GuideError as error:
            return f"the output so far does not match the constraint of the request: {error}"
        return guide


def _defect(error: BaseException) -> str:
    return f"compiling the grammar has failed ({type(error).__name__}): report this as a bug"


class _Request:
    def __init__(self, request_id: str, constraint: OutputConstraint, output_token_ids: Sequence[int]) -> None:
        self.request_id = request_id
        self.constraint = constraint
        self.output_token_ids = tuple(output_token_ids)
        self.outcome: OutputGuide | str | None = None


class _Compiler:
    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._built: tuple[llguidance.LLTokenizer, Trials] | str | None = None
        self._closed = False
        self.known_tokens = vocab_size  # of model and tokenizer

    def compile(self, grammar: Grammar) -> tuple[llguidance.LLMatcher | str, bool]:
        """Return a matcher at the start of the grammar or a refusal, and whether that lasts."""
        try:
            adapted = adapt_grammar(grammar)
            built = self._tokenizer_and_trials()
            if isinstance(built, str):
                return built, True
            tokenizer, trials = built
            if self._closed:
                trials.close()
            verdict = trials.verdict_on(adapted)
            return (verdict.refusal or compile_adapted(tokenizer, adapted)), verdict.lasting
        except BadGrammar as error:
            return str(error), True
        except TrialsError as error:
            return str(error), False

    def close(self) -> None:
        self._closed = True
        built = self._built
        if isinstance(built, tuple):
            built[1].close()

    def _tokenizer_and_trials(self) -> tuple[llguidance.LLTokenizer, Trials] | str:
        """Return both, or why this model has no grammars."""
        with self._lock:
            if self._built is None:
                try:
                    self._built = self._build()
                except VocabularyError as error:
                    self._built = str(error)
            return self._built

    def _build(self) -> tuple[llguidance.LLTokenizer, Trials]:
        vocabulary = read_vocabulary(self._path, self._vocab_size, self._eos_token_ids)
        self.known_tokens = vocabulary.size
        trials = Trials(vocabulary)
        trials.start()  # builds the tokenizer at the same time
        try:
            return build_tokenizer(vocabulary), trials
        except VocabularyError:
            trials.close()
            raise
