"""What the load generator asks: repeatable, of the lengths that were asked for, from files of two kinds."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvasir.benchmark.load_generator import arrivals
from kvasir.benchmark.workload import CHAT, Workload, lengths, plans
from kvasir.config.options import ConfigError


def bodies(workload: Workload) -> list[dict[str, Any]]:
    return [plan.body for plan in plans(workload, "m")]


def test_the_same_seed_sends_the_same_requests() -> None:
    workload = Workload(requests=5, disconnect=0.5, range_ratio=0.5, seed=3)
    assert plans(workload, "m") == plans(workload, "m")
    assert plans(workload, "m") != plans(Workload(requests=5, disconnect=0.5, range_ratio=0.5, seed=4), "m")


def test_prompts_are_token_ids_behind_a_common_prefix() -> None:
    asked = bodies(Workload(requests=8, input_len=20, prefix_len=10, vocab_low=7, vocab_high=9))
    assert all(len(body["prompt"]) == 30 and set(body["prompt"]) <= {7, 8} for body in asked)
    assert len({tuple(body["prompt"][:10]) for body in asked}) == 1
    assert len({tuple(body["prompt"]) for body in asked}) == 8


def test_a_chat_asks_words_at_the_chat_endpoint() -> None:
    [plan] = plans(Workload(requests=1, endpoint=CHAT, input_len=20, output_len=5), "m")
    assert plan.path == "/v1/chat/completions"
    [message] = plan.body["messages"]
    assert len(message["content"].split()) == 20
    assert plan.body["max_tokens"] == 5


def test_streams_ask_for_usage_and_whole_answers_do_not() -> None:
    assert bodies(Workload(requests=1))[0]["stream_options"] == {"include_usage": True}
    assert not {"stream", "stream_options"} & bodies(Workload(requests=1, stream=False))[0].keys()


@pytest.mark.parametrize(("middle", "ratio", "least", "most"), [(10, 0.0, 10, 10), (10, 0.5, 5, 15), (2, 1, 1, 4)])
def test_lengths_stay_within_their_share_and_above_zero(middle: int, ratio: float, least: int, most: int) -> None:
    rng = random.Random(0)
    drawn = {lengths(middle, ratio, rng) for _ in range(1000)}
    assert (min(drawn), max(drawn)) == (least, most)


def test_a_text_file_has_a_prompt_per_line_and_goes_round(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    asked = bodies(Workload(requests=3, prompts=str(file), output_len=4))
    assert [(body["prompt"], body["max_tokens"]) for body in asked] == [("one", 4), ("two", 4), ("one", 4)]
    asked = bodies(Workload(requests=1, prompts=str(file), endpoint=CHAT))
    assert asked[0]["messages"] == [{"role": "user", "content": "one"}]


def test_a_jsonl_file_has_prompts_messages_and_lengths(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    entries = [{"prompt": [1, 2], "max_tokens": 9}, {"messages": messages}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    first, second = plans(Workload(requests=2, prompts=str(file), output_len=4), "m")
    assert (first.path, first.body["prompt"], first.body["max_tokens"]) == ("/v1/completions", [1, 2], 9)
    assert (second.path, second.body["messages"], second.body["max_tokens"]) == (
        "/v1/chat/completions",
        messages,
        4,
    )


def test_a_jsonl_file_has_formats_of_the_output(tmp_path: Path) -> None:
    fields = {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a"]}}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "x", **fields}))
    [body] = bodies(Workload(requests=1, prompts=str(file)))
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.txt", None, "none.txt: No such file"),
        ("a.txt", " \n", "there is no prompt in it"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", '{"prompt": "x"}\n{"text": "x"}', "line 2: give an object with prompt or messages"),
        ("a.jsonl", '{"prompt": "x", "messages": []}', "line 1: give an object with prompt or messages"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        plans(Workload(prompts=str(file)), "m")


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="--vocab-high 5 must be above --vocab-low 100"):
        Workload(vocab_high=5)
    with pytest.raises(ConfigError, match="--disconnect needs streamed answers"):
        Workload(disconnect=0.1, stream=False)


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    times = list(itertools.islice(arrivals(50.0, seed=1), 5001))
    assert times[0] == 0.0
    assert times == sorted(times)
    assert 5000 / times[-1] == pytest.approx(50, rel=0.05)
    assert list(itertools.islice(arrivals(None, seed=1), 3)) == [0.0, 0.0, 0.0]
