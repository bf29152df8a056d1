"""Read sampling defaults and stop tokens from generation_config.json, config.json and options.

An unusable value is skipped with a note: the server's default applies.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.request.params import BOUNDS

MAX_NEW_TOKENS: Final = "max_new_tokens"
SAMPLING_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

# how other programs write "off", and the value here
_OFF: Final = MappingProxyType[str, tuple[float, float]](
    {"top_k": (-1, 0), "top_p": (0, 1.0), "repetition_penalty": (0, 1.0), "min_p": (-1, 0.0)}
)

# gets name, value and accepted values
Refuse = Callable[[str, Any, str], None]


def sampling_defaults(values: Mapping[str, Any], refuse: Refuse) -> dict[str, float | int]:
    """Return the usable defaults. `refuse` may raise for the others."""
    defaults: dict[str, float | int] = {}
    for name in SAMPLING_DEFAULTS:
        value = values.get(name)
        if value is None:
            continue
        if _is_number(value) and name in _OFF and value == _OFF[name][0]:
            defaults[name] = _OFF[name][1]
        elif not (_is_number(value) and value in BOUNDS[name]) or (name == "top_k" and value != int(value)):
            refuse(name, value, str(BOUNDS[name]))
        else:
            defaults[name] = int(value) if name == "top_k" else float(value)
    return defaults


def max_new_tokens(values: Mapping[str, Any], refuse: Refuse) -> int | None:
    value = values.get(MAX_NEW_TOKENS)
    if value is None or is_token_id(value, least=1):
        return value
    refuse(MAX_NEW_TOKENS, value, "a whole number above 0")
    return None


def eos_token_ids(values: Mapping[str, Any], refuse: Refuse) -> tuple[int, ...]:
    # -1: none
    value = values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not is_token_id(token_id) and token_id != -1:
            refuse("eos_token_id", value, "a token id or a list of them")
    return tuple(dict.fromkeys(token_id for token_id in ids if is_token_id(token_id)))


def is_token_id(value: Any, least: int = 0) -> bool:
    # a bool is an int
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
