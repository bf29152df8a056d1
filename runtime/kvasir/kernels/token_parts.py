"""Splits the new tokens of a step into parts, each for one program of a kernel.

[1, 1, 5] new tokens with at most 2 per part: parts of 1, 1, 2, 2 and 1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int32]


class TokenParts(NamedTuple):
    request: Ints  # [N] index in the step
    token: Ints  # [N] index of the first token in the step
    tokens: Ints  # [N]
    position: Ints  # [N] of the first token in the request


def token_parts(computed: Ints, new: Ints, most: int | Ints) -> TokenParts:
    """Split `new` [B] tokens of requests, after `computed` [B] tokens, into parts of up to `most` (one or [B])."""
    if (new == 1).all():
        each = np.arange(len(new))
        return TokenParts(each, each, new, computed)
    counts = -(-new // most)
    request = np.repeat(np.arange(len(new)), counts)
    size = np.broadcast_to(most, new.shape)[request]
    before = places_within(counts) * size
    tokens = np.minimum(new[request] - before, size)
    return TokenParts(request, (np.cumsum(new) - new)[request] + before, tokens, computed[request] + before)


def places_within(counts: Ints) -> Ints:
    # [2, 3] → [0, 1, 0, 1, 2]
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def columns(*numbers: Ints) -> Columns:
    joined = np.empty((len(numbers[0]), len(numbers)), np.int32)
    for place, column in enumerate(numbers):
        joined[:, place] = column
    return joined
