"""Outputs of JSON schemas are the same on every executor, with preempted, resumed and overlapped steps."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.speculation import Speculation
from kvasir.engine import build
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.worker import worker
from runtime.engine.oracle import Oracle
from runtime.executor.split_engine import Answer, SplitEngine
from runtime.worker.driver import engine_settings
from runtime.worker.late_copies import LateCopies

EXECUTORS = {
    "overlapped": (ExecutorConfig(), True),
    "one-process-overlapped": (ExecutorConfig(distributed_executor_backend="mp", worker_timeout=60.0), True),
    "two-ranks": (ExecutorConfig(tensor_parallel_size=2, worker_timeout=60.0), False),
    "launched": (None, False),
    "launched-overlapped": (None, True),
    "two-stages": (ExecutorConfig(pipeline_parallel_size=2, worker_timeout=60.0), False),
}
"""An executor, and whether steps overlap. None: a device that computes while the thread of the engine goes on."""
SCHEMAS = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 24}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["one", "two", 3]}, "minItems": 14, "maxItems": 18},
]


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    params: SamplingParams
    constraint: OutputConstraint | None


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(fetch("demo://", weights=True))


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> dict[str, Request]:
    """Greedy and seeded requests for each schema, and some without one."""
    found = {}
    for index in range(9):
        prompt = tokenizer.encode(f"{index}. Facts about Kvasir and its engines.", add_special_tokens=False)
        schema = SCHEMAS[index % 3] if index % 3 < len(SCHEMAS) else None
        found[f"r{index}"] = Request(
            prompt,
            SamplingParams(
                max_tokens=110,
                seed=index,
                temperature=index % 2,
                repetition_penalty=1.2 if index > 5 else 1.0,
                bad_words=((prompt[0],),) if index > 5 else (),
                ignore_eos=schema is None,  # long enough for preemptions, whatever the demo model was taught
            ),
            None
            if schema is None
            else OutputConstraint(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), any_whitespace=False)),
        )
    return found


def engine_of(executor: ExecutorConfig | None, overlapped: bool = False, num_blocks: int = 256) -> SplitEngine:
    model = load_model_info(fetch("demo://", weights=True))
    settings = engine_settings(
        num_blocks=num_blocks,
        max_num_batched_tokens=24,
        max_num_seqs=8,
        async_scheduling=overlapped,
        executor=executor or ExecutorConfig(),
    )
    return SplitEngine(model, settings, None if executor else InProcessExecutor(settings, model, launches=True))


def play(engine: SplitEngine, requests: dict[str, Request], emitted: dict[str, list[int]]) -> dict[str, Answer]:
    """`emitted`: by earlier attempts."""
    for name, request in requests.items():
        engine.add(name, request.prompt, request.params, emitted.get(name, []), request.constraint)
    engine.run()
    return engine.answers


@pytest.fixture(scope="module")
def whole(requests: dict[str, Request]) -> Iterator[dict[str, Answer]]:
    """The answers of one process without overlapped steps."""
    engine = engine_of(ExecutorConfig())
    yield play(engine, requests, {})
    assert engine.num_preemptions == 0
    engine.close()


def test_outputs_are_of_their_schemas(
    whole: dict[str, Answer], requests: dict[str, Request], tokenizer: Tokenizer
) -> None:
    kinds = set()
    for name, answer in whole.items():
        assert not answer.error
        if requests[name].constraint is None or answer.finish_reason != "stop":
            continue
        value = json.loads(tokenizer.decode(answer.tokens))
        if isinstance(value, dict):
            assert set(value) == {"name", "count"}
            assert len(value["name"]) <= 24
            assert isinstance(value["count"], int)
        else:
            assert 14 <= len(value) <= 18
            assert set(value) <= {"one", "two", 3}
        kinds.add(type(value))
    assert kinds == {dict, list}


def test_drafts_change_no_constrained_output(requests: dict[str, Request], monkeypatch: pytest.MonkeyPatch) -> None:
    reasoning = {
        f"thinks {budget}": replace(
            requests["r0"], constraint=OutputConstraint(reasoning_end=(17, 18), thinking_budget=budget)
        )
        for budget in (1, 5, 60)
    }
    found: dict[str, list[int]] = {}
    oracle = Oracle(lambda asked: found.get(asked.request_id, []))
    monkeypatch.setattr(build, "make_drafter", lambda speculation: oracle)
    model = load_model_info(fetch("demo://", weights=True))
    speculation = Speculation("ngram", 5, max_step_rows=20, prompt_lookup_min=1, prompt_lookup_max=5)
    engine = SplitEngine(model, engine_settings(max_num_seqs=8, speculation=speculation))
    plain = play(engine, requests | reasoning, {})
    assert not oracle.num_rejected
    found |= {name: answer.tokens for name, answer in plain.items()}
    engine.forget()
    assert play(engine, requests | reasoning, {}) == plain
    assert oracle.accepted[True] > 50
    assert oracle.num_rejected > 100
    engine.close()


@pytest.mark.parametrize("name", EXECUTORS)
def test_executors_give_the_same_outputs(
    name: str, whole: dict[str, Answer], requests: dict[str, Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, overlapped = EXECUTORS[name]
    monkeypatch.setattr(worker, "HostCopies", lambda device: LateCopies())
    engine = engine_of(executor, overlapped, num_blocks=22)
    answers = play(engine, requests, {})
    assert engine.num_preemptions > 0
    assert answers == whole
    engine.forget()
    half = {name: answer.tokens[: len(answer.tokens) // 2] for name, answer in whole.items()}
    resumed = play(engine, requests, half)
    assert {name: [*half[name], *answer.tokens] for name, answer in resumed.items()} == {
        name: answer.tokens for name, answer in whole.items()
    }
    engine.close()


def test_forced_tokens_are_those_that_masks_give(whole: dict[str, Answer], requests: dict[str, Request]) -> None:
    engine = engine_of(ExecutorConfig())
    constrained = {name: request for name, request in requests.items() if request.constraint is not None}
    for name, request in constrained.items():
        play(engine, {name: request}, {})
        steps = engine.core.num_steps
        assert engine.answers[name] == whole[name]
        masked = replace(request, params=msgspec.structs.replace(request.params, logprobs=0))
        play(engine, {name: masked}, {})  # with log probabilities each token is sampled
        assert engine.answers[name] == whole[name]
        assert steps < engine.core.num_steps - steps
        engine.core.num_steps = 0
    engine.close()
