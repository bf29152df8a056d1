import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import llguidance
import pytest

from kvasir.engine.grammar import compiling, grammars
from kvasir.engine.grammar.grammars import PASSING_SECONDS, CompiledGrammars, Grammars, estimated_bytes
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.hub.source import fetch
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.grammar_bounds.refusals import schema_grammar
from runtime.hub import small_tokenizers as small

from .byte_vocabulary import allowed

VOCAB_SIZE: Final = 2048
OBJECT = schema_grammar({"type": "object"})


class Requests:
    """Begins requests, and waits until they are woken."""

    def __init__(self, tokenizer: Path, eos: tuple[int, ...] = (0,)) -> None:
        self.woken: list[str] = []
        self._event = threading.Condition()
        self.grammars = Grammars(tokenizer, VOCAB_SIZE, eos, self._wake)

    def outcome(self, grammar: Grammar | None, output: tuple[int, ...] = (), **more: Any) -> OutputGuide | str:
        request_id = f"request {time.monotonic_ns()}"
        self.grammars.begin(request_id, OutputConstraint(grammar, **more), output)
        self.wait_for(request_id)
        outcome = self.grammars.outcome(request_id)
        assert outcome is not None
        self.grammars.forget(request_id)
        return outcome

    def wait_for(self, request_id: str) -> None:
        with self._event:
            assert self._event.wait_for(lambda: request_id in self.woken, 60)

    def _wake(self, request_id: str) -> None:
        with self._event:
            self.woken.append(request_id)
            self._event.notify_all()


@pytest.fixture(scope="module")
def requests() -> Iterator[Requests]:
    started = Requests(fetch("demo://", weights=False))
    yield started
    started.grammars.close()


def test_a_request_gets_its_guide(requests: Requests) -> None:
    guide = requests.outcome(OBJECT)
    assert isinstance(guide, OutputGuide)
    assert not guide.is_free
    assert allowed(guide, VOCAB_SIZE)


def test_guides_of_one_grammar_are_independent(requests: Requests) -> None:
    first, second = requests.outcome(OBJECT), requests.outcome(OBJECT)
    assert isinstance(first, OutputGuide)
    assert isinstance(second, OutputGuide)
    before = allowed(second, VOCAB_SIZE)
    first.accept(allowed(first, VOCAB_SIZE)[:1])
    assert allowed(first, VOCAB_SIZE) != before
    assert allowed(second, VOCAB_SIZE) == before


@pytest.mark.parametrize("count", [1, 300])
def test_a_resumed_request_continues_its_output(requests: Requests, count: int) -> None:
    numbers = Grammar(GrammarKind.REGEX, "[0-9]+")
    whole = requests.outcome(numbers)
    assert isinstance(whole, OutputGuide)
    output = tuple(allowed(whole, VOCAB_SIZE)[:1] * count)
    whole.accept(output)
    resumed = requests.outcome(numbers, output)
    assert isinstance(resumed, OutputGuide)
    assert allowed(resumed, VOCAB_SIZE) == allowed(whole, VOCAB_SIZE)
    letter = requests.outcome(Grammar(GrammarKind.REGEX, "[a-z]"), output)
    assert isinstance(letter, str)
    assert "output so far" in letter


def test_a_constraint_without_a_grammar_needs_no_process(tmp_path: Path) -> None:
    requests = Requests(tmp_path / "missing")
    guide = requests.outcome(None, reasoning_end=(5,), thinking_budget=1)
    assert isinstance(guide, OutputGuide)
    assert guide.is_free
    requests.grammars.close()


def test_a_grammar_is_compiled_once_for_all_requests(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Grammar] = []

    def compile_adapted(tokenizer: llguidance.LLTokenizer, grammar: Grammar) -> llguidance.LLMatcher:
        compiled.append(grammar)
        return compiling.compile_adapted(tokenizer, grammar)

    monkeypatch.setattr(grammars, "compile_adapted", compile_adapted)
    grammar = schema_grammar({"const": "compiled once"})
    for number in range(20):
        requests.grammars.begin(f"once {number}", OutputConstraint(grammar), ())
    for number in range(20):
        requests.wait_for(f"once {number}")
        assert isinstance(requests.grammars.outcome(f"once {number}"), OutputGuide)
    assert len(compiled) == 1


def test_a_cached_grammar_is_there_at_once(requests: Requests) -> None:
    requests.outcome(OBJECT)
    requests.grammars.begin("cached", OutputConstraint(OBJECT), ())
    assert isinstance(requests.grammars.outcome("cached"), OutputGuide)
    assert "cached" in requests.woken


def test_a_request_that_has_ended_is_not_woken(requests: Requests) -> None:
    grammar = schema_grammar({"const": "forgotten"})
    requests.grammars.begin("forgotten", OutputConstraint(grammar), ())
    requests.grammars.forget("forgotten")
    assert isinstance(requests.outcome(grammar), OutputGuide)
    assert requests.grammars.outcome("forgotten") is None
    assert "forgotten" not in requests.woken


def test_a_grammar_whose_requests_have_ended_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    adapted: list[Grammar] = []
    goes_on = threading.Event()

    def adapt_grammar(grammar: Grammar) -> Grammar:
        adapted.append(grammar)
        goes_on.wait(60)
        return grammar

    monkeypatch.setattr(grammars, "MAX_COMPILING", 1)
    monkeypatch.setattr(grammars, "adapt_grammar", adapt_grammar)
    requests = Requests(fetch("demo://", weights=False))
    first, dropped, last = (schema_grammar({"const": number}) for number in range(3))
    for name, grammar in (("first", first), ("dropped", dropped), ("last", last)):
        requests.grammars.begin(name, OutputConstraint(grammar), ())
    requests.grammars.forget("dropped")
    goes_on.set()
    requests.wait_for("last")
    assert adapted == [first, last]
    assert isinstance(requests.outcome(dropped), OutputGuide)
    requests.grammars.close()


def test_a_defect_is_an_answer(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As of Rust."""

    def raise_panic(*_: Any, **__: Any) -> None:
        raise Panic

    with monkeypatch.context() as patch:
        patch.setattr(grammars, "compile_adapted", raise_panic)
        assert "Panic" in str(requests.outcome(schema_grammar({"const": "panics"})))
    requests.outcome(OBJECT)
    monkeypatch.setattr(grammars, "OutputGuide", raise_panic)
    assert "Panic" in str(requests.outcome(OBJECT, output=(1,) * 300))


def test_an_end_token_that_the_model_lacks_is_ignored() -> None:
    requests = Requests(fetch("demo://", weights=False), eos=(0, VOCAB_SIZE + 100))
    guide = requests.outcome(OBJECT, reasoning_end=(5,))
    assert isinstance(guide, OutputGuide)
    assert allowed(guide, VOCAB_SIZE) == list(range(1, VOCAB_SIZE))
    requests.grammars.close()


def test_a_model_without_bytes_or_an_end_refuses_grammars(tmp_path: Path) -> None:
    words = Requests(small.save(tmp_path / "words", small.word_piece(), {}))
    assert "do not stand for bytes" in str(words.outcome(OBJECT))
    endless = Requests(fetch("demo://", weights=False), eos=(VOCAB_SIZE + 1,))
    assert "eos_token_id" in str(endless.outcome(OBJECT))
    missing = Requests(tmp_path)
    assert "holds no tokenizer" in str(missing.outcome(OBJECT))
    for requests in (words, endless, missing):
        requests.grammars.close()


def test_close_answers_requests_that_wait() -> None:
    requests = Requests(fetch("demo://", weights=False))
    requests.outcome(OBJECT)
    requests.grammars.begin(
        "bomb", OutputConstraint(schema_grammar({"type": "integer", "multipleOf": 1_000_003})), ()
    )
    time.sleep(0.1)
    requests.grammars.close()
    requests.wait_for("bomb")
    assert requests.grammars.outcome("bomb") == "this engine ends: send the request again"


def test_the_cache_is_bounded_by_number_and_bytes() -> None:
    texts = [Grammar(GrammarKind.REGEX, f"{number}" * 100) for number in range(10)]
    few = CompiledGrammars(max_grammars=3)
    small_one = CompiledGrammars(max_bytes=3 * estimated_bytes(texts[0]))
    for cache in (few, small_one):
        for grammar in texts:
            cache.put(grammar, "refused")
            cache.put(grammar, "refused")
            cache.get(texts[0])
        assert len(cache) == 3
        assert cache.get(texts[0]) == "refused"
        assert cache.get(texts[1]) is None
        assert cache.get(texts[9]) == "refused"


def test_a_refusal_of_a_busy_machine_passes() -> None:
    now = 100.0
    cache = CompiledGrammars(clock=lambda: now)
    cache.put(OBJECT, "busy", lasting=False)
    cache.put(schema_grammar({}), "refused")
    now += PASSING_SECONDS - 0.1
    assert cache.get(OBJECT) == "busy"
    now += 0.1
    assert cache.get(OBJECT) is None
    assert cache.get(schema_grammar({})) == "refused"


def _optional(levels: int) -> dict[str, Any]:
    definitions = {"d0": {"type": "integer"}} | {
        f"d{n}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{n - 1}"}, "b": {"$ref": f"#/$defs/d{n - 1}"}},
            "additionalProperties": False,
        }
        for n in range(1, levels)
    }
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def _doubled(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {keyword: [{"type": "object", "properties": {"a": schema}}, {"type": "array", "items": schema}]}
    return schema


def _inlined(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    return schema


BOMBS: dict[str, Grammar] = {
    "minItems": schema_grammar({"type": "array", "minItems": 10**9}),
    "maxItems": schema_grammar({"type": "array", "maxItems": 10**9, "items": {"type": "object"}}),
    "minLength": schema_grammar({"type": "string", "minLength": 10**9}),
    "minItems and maxItems": schema_grammar({"type": "array", "minItems": 10**5, "maxItems": 10**9}),
    "30 levels of optional properties": schema_grammar(_optional(30)),
    "12 levels of optional properties, inlined": schema_grammar(_inlined(12)),
    "20,000 enum values": schema_grammar({"enum": [f"value {n}" for n in range(20_000)]}),
    "20,000 enum values in few bytes": schema_grammar({"enum": list(range(20_000))}),
    "10,000 enum objects": schema_grammar({"enum": [{"a": n} for n in range(10_000)]}),
    "5,000 properties": schema_grammar({"type": "object", "properties": {f"p{n}": {} for n in range(5_000)}}),
    "multipleOf": schema_grammar({"type": "integer", "multipleOf": 1_000_003}),
    "50 pattern properties": schema_grammar(
        {"type": "object", "patternProperties": {f"^(a|b)*{n}(a|b){{20}}$": {} for n in range(50)}}
    ),
    "counted": schema_grammar({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}),
    "counted in Lark": Grammar(GrammarKind.LARK, 'start: ("a"{1000} "b"){1000000}'),
    "nested groups": schema_grammar({"type": "string", "pattern": "(" * 60_000 + ")" * 60_000}),
    "unclosed classes": Grammar(GrammarKind.EBNF, "root ::= " + "[" * 60_000),
    "exponential regex": Grammar(GrammarKind.REGEX, "(a|b)*a(a|b){30}"),
    "exponential pattern": schema_grammar({"type": "string", "pattern": "^(.*a){25}(b|c)*d(b|c){40}$"}),
    "left recursion": Grammar(GrammarKind.LARK, 'start: start start | "x"'),
    "left recursion without an end": Grammar(GrammarKind.LARK, 'start: start "x"'),
    "EBNF with deep ambiguity": Grammar(GrammarKind.EBNF, 'root ::= root root root | "x" | ""'),
    "10 MB": schema_grammar('{"title":"' + "x" * 10_000_000 + '"}'),
    "10 MB of nesting": schema_grammar('{"items":' * 1_100_000),
    "$ref to itself": schema_grammar({"$ref": "#"}),
    "oneOf, doubled": schema_grammar(_doubled("oneOf", 11)),
    "anyOf, doubled": schema_grammar(_doubled("anyOf", 11)),
    "allOf of anyOf": schema_grammar(
        {
            "allOf": [
                {"anyOf": [{"required": [f"p{n}"]}, {"required": [f"q{n}"]}], "type": "object"} for n in range(9)
            ]
        }
    ),
    "substrings": Grammar(GrammarKind.LARK, 'start: %regex {"substring_chars": ' + json.dumps("ab" * 30_000) + "}"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_answered_and_costs_no_memory(requests: Requests, name: str) -> None:
    requests.outcome(OBJECT)  # the process has been started
    before = _resident_bytes()
    start = time.monotonic()
    outcome = requests.outcome(BOMBS[name])
    seconds = time.monotonic() - start
    grown = (_resident_bytes() - before) >> 20
    print(f"{name}: {seconds:.3f} s, {grown} MiB, {outcome}")
    assert grown < 150
    assert isinstance(requests.outcome(BOMBS[name]), type(outcome))
    assert isinstance(requests.outcome(OBJECT), OutputGuide)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
