"""The flat list of work items of a step: each program of the attention kernel reads its item and searches nothing.

An item is a part of a request's new tokens, and a segment of the keys that they see. If the items are too few to
occupy the device (decodes of few requests with long contexts), their keys are split into segments. The programs of
a split item write partial results, which segment_merge.py merges.

    new tokens of a step    | 1 | 1 |     5     |         with 2 tokens per item
    items                   | 0 | 1 | 2 | 3 | 4 |         0 has a long context: 3 segments, and slots 0 to 2
    programs                0 0 0 1   2   3   4
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int32]

ITEM_SIZE: Final = 8
"""Numbers of an item, the last one unused: items start at multiples of 32 bytes."""
MERGE_SIZE: Final = 4
MIN_SEGMENT_KEYS: Final = 256
"""A segment has at least about this many keys: its partial results are written and read once more."""
MAX_SEGMENTS: Final = 64
"""Of an item: one program merges them."""


class WorkList(NamedTuple):
    """N programs per KV head; M of the items are split."""

    items: Columns
    """[N, 8] row of the step's block table, first token in the step, tokens, position of the first token, segment,
    segments, slot of the partial results, unused"""
    merges: Columns
    """[M, 4] first slot, segments, first token in the step, tokens"""
    num_slots: int
    """The slots of all partial results."""


def work_list(
    computed: Ints, new: Ints, *, tokens_per_item: int, window: int | None, kv_heads: int, programs: int
) -> WorkList:
    """Return the items of B requests with `new` [B] tokens each after `computed` [B] ones.

    `programs`: so many programs occupy the device. With fewer, items of long contexts are split.
    """
    counts = -(-new // tokens_per_item)
    request = np.repeat(np.arange(len(new)), counts)  # [items]
    before = _places_within(counts) * tokens_per_item
    tokens = np.minimum(new[request] - before, tokens_per_item)
    position = computed[request] + before
    token = (np.cumsum(new) - new)[request] + before
    keys = position + tokens
    if window is not None:
        keys = np.minimum(keys, tokens + window - 1)
    segments = _segments(keys, kv_heads, programs)
    item = np.repeat(np.arange(len(request)), segments)  # [N]
    split = segments > 1
    slots = np.where(split, segments, 0)
    first_slot = np.cumsum(slots) - slots
    segment = _places_within(segments)
    slot = np.where(split[item], first_slot[item] + segment, 0)
    items = _stack(request[item], token[item], tokens[item], position[item], segment, segments[item], slot, slot)
    merges = _stack(first_slot[split], segments[split], token[split], tokens[split])
    return WorkList(items, merges, int(slots.sum()))


def _segments(keys: Ints, kv_heads: int, programs: int) -> Ints:
    """Return the segments of items [items] that see so many keys, so that the programs have about equal work."""
    if len(keys) * kv_heads >= programs:
        return np.ones_like(keys)
    share = max(MIN_SEGMENT_KEYS, -(-int(keys.sum()) * kv_heads // programs))
    return np.minimum(-(-keys // share), MAX_SEGMENTS)


def _places_within(counts: Ints) -> Ints:
    """Return 0 to n-1 for each n of the counts: [2, 3] → [0, 1, 0, 1, 2]."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _stack(*columns: Ints) -> Columns:
    """[N, columns]"""
    return np.stack(columns, axis=1).astype(np.int32)
