"""The sizes of the sampling kernels. Not tuned. Imports no torch."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PART_TOKENS: Final = 2048  # of a row, for a program
SEARCH_TOKENS: Final = 2048  # of a search step
SEARCH_WARPS: Final = 16
ENTRIES: Final = 256
# A token's count is IN_PROMPT if the prompt has it, plus IN_OUTPUT per time in the output.
IN_PROMPT: Final = 1
IN_OUTPUT: Final = 2
# The reference rounds after each operation, so products and sums are not fused.
OPTIONS: Final[Mapping[str, object]] = MappingProxyType({"enable_fp_fusion": False})


def num_parts(vocab_size: int) -> int:
    return -(-vocab_size // PART_TOKENS)


def padded_parts(vocab_size: int) -> int:
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
