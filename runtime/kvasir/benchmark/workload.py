"""Settings of the load generator, and its requests: random token ids (the same for the same seed), or those of
a file."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int, parse_number
from kvasir_contract.units import parse_duration

COMPLETIONS: Final = "completions"
CHAT: Final = "chat"
# Without --concurrency and --request-rate.
CONCURRENCY: Final = 8
# One token each in most vocabularies, for prompts that cannot be token ids.
_WORDS: Final = (
    *(
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "that",
        "it",
        "was",
        "for",
        "on",
        "are",
        "as",
        "with",
        "his",
        "they",
        "at",
    ),
    *("be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we"),
)

# A line of a file may have these fields of a request.
_OPTIONAL: Final = frozenset({"max_tokens", "response_format", "structured_outputs"})


def _endpoint(text: str) -> str:
    # vLLM names the endpoint by a path, or a backend.
    names = {"/v1/completions": COMPLETIONS, "/v1/chat/completions": CHAT, "openai-chat": CHAT}
    return names.get(text, COMPLETIONS if text in ("vllm", "openai") else text)


def _rate(text: str) -> float:
    return math.inf if text.lower() == "inf" else float(parse_number(1e-3)(text))


@dataclass(frozen=True)
class Workload:
    model: str | None = option(
        None,
        "name of the model [default: the first served name]",
        metavar="NAME",
        aliases=("--served-model-name",),
    )
    endpoint: str = option(
        COMPLETIONS,
        "OpenAI endpoint to send requests to",
        choices=(COMPLETIONS, CHAT),
        parse=_endpoint,
        aliases=("--backend",),
    )
    requests: int = option(100, "requests to send", parse=parse_int(1), aliases=("--num-prompts",))
    input_len: int = option(
        128,
        "random tokens per prompt; with --endpoint chat, words",
        parse=parse_int(1),
        aliases=("--random-input-len",),
    )
    output_len: int = option(
        128, "max_tokens of each request", parse=parse_int(1), aliases=("--random-output-len",)
    )
    range_ratio: float = option(
        0.0,
        "draw both lengths evenly from their value ± this share of it",
        parse=parse_number(0, 1),
        metavar="SHARE",
        aliases=("--random-range-ratio",),
    )
    prefix_len: int = option(
        0,
        "additional tokens (words) that all prompts begin with",
        parse=parse_int(0),
        aliases=("--random-prefix-len",),
    )
    vocab_low: int = option(100, "lowest random token id", parse=parse_int(0))
    vocab_high: int = option(1000, "random token ids are below this", parse=parse_int(1))
    prompts: str | None = option(
        None,
        "read prompts from this file, one per line; in a .jsonl file, each line is an object with prompt (text or "
        "token ids) or messages, and optionally max_tokens, response_format or structured_outputs; a .json file is "
        "in ShareGPT's format, and its first message of each conversation is sent",
        metavar="FILE",
        aliases=("--dataset-path",),
    )
    temperature: float = option(0.0, "temperature of every request", parse=parse_number(0))
    ignore_eos: bool = option(
        True, "generate max_tokens tokens regardless of end-of-sequence (a field of Kvasir's and vLLM's API)"
    )
    stream: bool = option(True, "stream the answers; otherwise only whole answers are timed")
    disconnect: float = option(
        0.0,
        "share of the requests whose client disconnects after a few tokens",
        parse=parse_number(0, 1),
        metavar="SHARE",
    )
    seed: int = option(0, "the same seed sends the same requests", parse=parse_int(0))

    def __post_init__(self) -> None:
        if self.vocab_low >= self.vocab_high:
            raise ConfigError(f"--vocab-high {self.vocab_high} must be above --vocab-low {self.vocab_low}")
        if self.disconnect and not self.stream:
            raise ConfigError("--disconnect needs streamed answers: leave out --no-stream")


@dataclass(frozen=True)
class Pace:
    concurrency: int | None = option(
        None,
        f"maximum concurrent requests [default: {CONCURRENCY}; unlimited with --request-rate]",
        parse=parse_int(1),
        aliases=("--max-concurrency",),
    )
    request_rate: float | None = option(
        None,
        "requests per second, sent at Poisson times, instead of each after an answer; inf: all at once",
        parse=_rate,
        metavar="N",
    )
    warmup: int = option(1, "requests before the measurement", parse=parse_int(0), aliases=("--num-warmups",))
    timeout: float = option(600.0, "maximum time of a request", parse=parse_duration, metavar="TIME")
    new_connections: bool = option(
        False, "open a new connection for each request, for servers that close connections after an answer"
    )


@dataclass(frozen=True)
class OfflineWorkload:
    """Random requests for an engine in this process."""

    input_len: int = option(128, "tokens per prompt", parse=parse_int(1))
    output_len: int = option(128, "tokens to generate", parse=parse_int(1))
    range_ratio: float = option(
        0.0,
        "draw both lengths evenly from their value ± this share of it",
        parse=parse_number(0, 1),
        metavar="SHARE",
    )
    temperature: float = option(0.0, "temperature of every request", parse=parse_number(0))
    seed: int = option(0, "the same seed draws the same prompts", parse=parse_int(0))


@dataclass(frozen=True)
class RequestPlan:
    path: str
    body: dict[str, Any]
    # After so many chunks.
    hang_up_after: int | None = None


def plans(workload: Workload, model: str) -> list[RequestPlan]:
    """Yield the requests. Raises ConfigError for a file of prompts that cannot be used."""
    rng = random.Random(workload.seed)
    prompts = _from_file(workload) if workload.prompts else _random(workload, rng)
    result = []
    for _ in range(workload.requests):
        body = {"model": model, "temperature": workload.temperature, **next(prompts)}
        if workload.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if workload.ignore_eos:
            body["ignore_eos"] = True
        hang_up = rng.random() < workload.disconnect
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        result.append(RequestPlan(path, body, rng.randint(1, 8) if hang_up else None))
    return result


def lengths(middle: int, ratio: float, rng: random.Random) -> int:
    spread = int(middle * ratio)
    return max(1, rng.randint(middle - spread, middle + spread))


def _random(workload: Workload, rng: random.Random) -> Iterator[dict[str, Any]]:
    chat = workload.endpoint == CHAT
    vocabulary: Any = _WORDS if chat else range(workload.vocab_low, workload.vocab_high)
    prefix = rng.choices(vocabulary, k=workload.prefix_len)
    while True:
        drawn = prefix + rng.choices(vocabulary, k=lengths(workload.input_len, workload.range_ratio, rng))
        asked = {"messages": _messages(" ".join(drawn))} if chat else {"prompt": drawn}
        yield {**asked, "max_tokens": lengths(workload.output_len, workload.range_ratio, rng)}


def _from_file(workload: Workload) -> Iterator[dict[str, Any]]:
    # The prompts in their order, over and over.
    assert workload.prompts is not None
    path = Path(workload.prompts)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: {getattr(error, 'strerror', None) or error}") from error
    if not lines:
        raise ConfigError(f"--prompts {path}: there is no prompt in it")
    if path.suffix == ".json":
        asked = _sharegpt(path, "\n".join(lines))
    elif path.suffix == ".jsonl":
        asked = [_entry(f"--prompts {path}, line {number}", line) for number, line in enumerate(lines, 1)]
    else:
        asked = [{"prompt": line} for line in lines]
    if workload.endpoint == CHAT:
        asked = [_as_chat(entry) for entry in asked]
    return _endless([{"max_tokens": workload.output_len, **entry} for entry in asked])


def _sharegpt(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(text)
        found = [{"prompt": str(entry["conversations"][0]["value"])} for entry in entries if entry["conversations"]]
    except (ValueError, LookupError, TypeError):
        found = []
    if not found:
        raise ConfigError(f"--prompts {path}: give a list of objects with conversations, as ShareGPT has it")
    return found


def _endless(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        yield from entries


def _entry(place: str, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place}: not JSON: {error}") from error
    asked = {"prompt", "messages"}
    if not isinstance(entry, dict) or len(entry.keys() & asked) != 1 or entry.keys() - asked - _OPTIONAL:
        raise ConfigError(
            f"{place}: give an object with prompt or messages, and optionally {', '.join(sorted(_OPTIONAL))}"
        )
    return entry


def _as_chat(entry: dict[str, Any]) -> dict[str, Any]:
    if "messages" in entry:
        return entry
    if not isinstance(entry["prompt"], str):
        raise ConfigError("--endpoint chat: a prompt of token ids cannot be a message; give its text")
    return {"messages": _messages(entry["prompt"]), **{k: v for k, v in entry.items() if k != "prompt"}}


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
