"""Suggestions for unknown options and environment variables."""

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

_SAME: Final = 0.9
"""Similarity from which two names count as the same, however they are split into words."""
_SAME_WORD: Final = 0.6
"""Similarity that every word needs if both names have equally many words: "size" alone matches too much."""
_BEGINNING: Final = 5
"""Characters, including dashes, from which a prefix of a name is accepted as a hint at the whole name."""
_NOT_YET: Final = "is not supported yet"

VLLM_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("--decode-context-parallel-size", "--prefill-context-parallel-size", "--cpu-offload-gb"),
                *("--all2all-backend", "--enable-eplb", "--enable-dbo", "--data-parallel-backend"),
                *("--quantization", "--kv-cache-dtype", "--calculate-kv-scales", "--swap-space"),
                *("--enable-lora", "--lora-modules", "--max-lora-rank", "--max-loras", "--speculative-config"),
                *("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser", "--response-role"),
                *("--tokenizer", "--tokenizer-mode"),
                *("--hf-overrides", "--generation-config", "--override-generation-config", "--max-logprobs"),
                *("--enforce-eager", "--compilation-config", "--limit-mm-per-prompt", "--runner", "--seed"),
                *("--guided-decoding-backend", "--structured-outputs-config", "--kv-transfer-config"),
                *("--max-num-partial-prefills", "--max-long-partial-prefills", "--num-scheduler-steps"),
                *("--attention-backend", "--config"),
            ),
            _NOT_YET,
        ),
        **dict.fromkeys(
            ("--nnodes", "--node-rank", "--master-addr", "--master-port"), "is an option of kvasir engine"
        ),
        **dict.fromkeys(
            ("--data-parallel-start-rank", "--data-parallel-hybrid-lb", "--data-parallel-external-lb"),
            "is not needed: each engine is started with --data-parallel-rank",
        ),
        "--collect-detailed-traces": "is not needed: --otlp-traces-endpoint alone sends the times in queue, "
        "prefill and decode; there are no spans of single steps",
        "--headless": "is not needed: kvasir engine has no API server",
        "--disable-log-requests": "is --no-log-requests here",
        "--enable-log-requests": "is --log-requests here",
        "--enable-chunked-prefill": "is not needed: it is always on",
        "--trust-remote-code": "is not supported: code from a model's own repository is never run",
        "--revision": "is part of the model here: hf://org/name@revision",
        "--model": "is not needed: the model is the first argument",
        "-dp": "is --data-parallel-size here",
    }
)
"""Options of `vllm serve` that Kvasir does not have → the end of a sentence that begins with the option."""


def for_option(given: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return a suggestion in brackets for an unknown option, or "". `elsewhere` maps options of vLLM to advice."""
    name = given.replace("_", "-")
    if name in elsewhere:
        return f" ({name} {elsewhere[name]})"
    same_side = [other for other in (*known, *elsewhere) if _negative(other) == _negative(name)]
    meant = closest(name, same_side)
    if meant in elsewhere:
        return f" (did you mean {meant}? It {elsewhere[meant]})"
    return f" (did you mean {meant}?)" if meant else ""


def for_missing(words: Sequence[str], many: Collection[str]) -> str:
    """Return a hint in brackets if one of the `many` options took the missing positional argument, or ""."""
    for at, word in enumerate(words):
        taken = list(itertools.takewhile(lambda value: not value.startswith("-"), words[at + 1 :]))
        if word in many and len(taken) > 1:
            return f" ({word} takes several values and took {taken[-1]} too: write that before {word})"
    return ""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that this one abbreviates or misspells, or ""."""
    close = [other for other in known if _begins(name, other) or _is_slip(name, other)]
    return max(close, key=lambda other: _likeness(name, other), default="")


def _negative(option: str) -> bool:
    """Return whether an option switches off: such options are not suggested for the others."""
    return option.startswith(("--no-", "--disable-"))


def _begins(name: str, other: str) -> bool:
    return len(name) >= _BEGINNING and other.startswith(name)


def _is_slip(name: str, other: str) -> bool:
    words, others = (text.lower().replace("_", "-").strip("-").split("-") for text in (name, other))
    if len(words) == len(others):
        return all(_likeness(*pair) >= _SAME_WORD for pair in zip(words, others, strict=True))
    return _likeness(name, other) >= _SAME


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
