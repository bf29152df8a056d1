"""What may have been meant by an option or a variable that does not exist. Used by options.py and variables.py."""

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

_SAME: Final = 0.9
"""Names as alike as this are taken for each other, however they are cut into words."""
_SAME_WORD: Final = 0.6
"""Names of as many words are, where each word is as alike as this to the other's: "size" alone is ambiguous."""
_BEGINNING: Final = 5
"""Characters of a name, dashes included, that may stand for the whole of it."""
_NOT_YET: Final = "is not supported yet"

VLLM_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--enable-expert-parallel"),
                *("--decode-context-parallel-size", "--distributed-executor-backend", "--cpu-offload-gb"),
                *("--quantization", "--kv-cache-dtype", "--calculate-kv-scales", "--swap-space", "--load-format"),
                *("--enable-lora", "--lora-modules", "--max-lora-rank", "--max-loras", "--speculative-config"),
                *("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser", "--response-role"),
                *("--chat-template", "--chat-template-content-format", "--tokenizer", "--tokenizer-mode"),
                *("--hf-overrides", "--generation-config", "--override-generation-config", "--max-logprobs"),
                *("--enforce-eager", "--compilation-config", "--limit-mm-per-prompt", "--runner", "--seed"),
                *("--guided-decoding-backend", "--structured-outputs-config", "--kv-transfer-config"),
                *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--root-path", "--middleware"),
                *("--uds", "--max-num-partial-prefills", "--max-long-partial-prefills", "--num-scheduler-steps"),
                *("--attention-backend", "--prefix-caching-hash-algo", "--api-server-count", "--config"),
            ),
            _NOT_YET,
        ),
        "--disable-log-requests": "is --no-log-requests here",
        "--enable-log-requests": "is --log-requests here",
        "--enable-chunked-prefill": "is not needed: it is always on",
        "--trust-remote-code": "is not supported: code from a model's own repository is never run",
        "--revision": "is written behind the model: hf://org/name@revision",
        "--model": "is not needed: the model is the first argument",
        "-dp": "is --data-parallel-size here",
    }
)
"""Advice for options of `vllm serve` that Kvasir does not have."""


def for_option(given: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """In brackets, to stand behind an error; "" if nothing is similar. `elsewhere`: advice by foreign name."""
    name = given.replace("_", "-")
    if name in elsewhere:
        return f" ({name} {elsewhere[name]})"
    same_side = [other for other in (*known, *elsewhere) if _negative(other) == _negative(name)]
    meant = closest(name, same_side)
    if meant in elsewhere:
        return f" (did you mean {meant}? It {elsewhere[meant]})"
    return f" (did you mean {meant}?)" if meant else ""


def for_missing(words: Sequence[str], many: Collection[str]) -> str:
    """In brackets, where a positional argument is missed: one of the `many` options, of several values, took it."""
    for at, word in enumerate(words):
        taken = list(itertools.takewhile(lambda value: not value.startswith("-"), words[at + 1 :]))
        if word in many and len(taken) > 1:
            return f" ({word} takes several values, and took {taken[-1]} too: write that before {word})"
    return ""


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that this one is a slip or the beginning of, "" where there is none."""
    close = [other for other in known if _begins(name, other) or _is_slip(name, other)]
    return max(close, key=lambda other: _likeness(name, other), default="")


def _negative(option: str) -> bool:
    """Its opposite is the last thing to suggest."""
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
