"""The sizes of the sampling kernels, for launches and compilation ahead of time. Not tuned. No torch."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Tokens of a row that a program of the race takes.
PART_TOKENS: Final = 2048
# Tokens that a search for the limits of a row takes together.
SEARCH_TOKENS: Final = 2048
SEARCH_WARPS: Final = 16
# Entries of the logits that a program changes.
ENTRIES: Final = 256
# The count of a token that is in the prompt of a penalised row, and not in its output.
IN_PROMPT: Final = 1
# Each time in the output adds this to the count of a token.
IN_OUTPUT: Final = 2
# The reference rounds after each operation, so products and sums are not fused.
OPTIONS: Final[Mapping[str, object]] = MappingProxyType({"enable_fp_fusion": False})


def num_parts(vocab_size: int) -> int:
    """Return the number of programs that share a row."""
    return -(-vocab_size // PART_TOKENS)


def padded_parts(vocab_size: int) -> int:
    """Return the power of two that holds the parts of a row."""
    return 1 << (num_parts(vocab_size) - 1).bit_length()


def race_constants(*, random: bool, scaled: bool, limited: bool, interpreted: bool) -> dict[str, object]:
    return {
        "PART_TOKENS": PART_TOKENS,
        "RANDOM": random,
        "SCALED": scaled,
        "LIMITED": limited,
        "INTERPRETED": interpreted,
    }


def pick_constants(vocab_size: int, *, indexed: bool) -> dict[str, object]:
    return {"PADDED_PARTS": padded_parts(vocab_size), "INDEXED": indexed}


def scale_constants(*, stored: bool) -> dict[str, object]:
    return {"PART_TOKENS": PART_TOKENS, "STORED": stored}


def limit_constants(vocab_size: int, *, floored: bool, filtered: bool) -> dict[str, object]:
    return {
        "PADDED_PARTS": padded_parts(vocab_size),
        "TOKENS": SEARCH_TOKENS,
        "FLOORED": floored,
        "FILTERED": filtered,
    }
