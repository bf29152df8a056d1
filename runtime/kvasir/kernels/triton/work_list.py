"""The work items of a step, one for each program of the attention kernel.

An item is a part of a request's new tokens and a segment of their keys. Contexts are split into segments only to
occupy the device; segment_merge.py merges the partial results.

new tokens of a step    | 1 | 1 |     5     |         with 2 tokens per item
items                   | 0 | 1 | 2 | 3 | 4 |         0 has a long context: 3 segments
programs                0 0 0 0 1   2   3   4
"""

from typing import Final, NamedTuple

import numpy as np

from kvasir.kernels.token_parts import Columns, Ints, columns, places_within, token_parts

ITEM_SIZE: Final = 8  # the last number is padding, for alignment
MERGE_SIZE: Final = 4
_SEGMENTS: Final = 5  # index in an item
# Each segment costs a write and a read of partial results.
MIN_SEGMENT_KEYS: Final = 128
MAX_SEGMENTS: Final = 64  # of an item, which one program merges


class WorkList(NamedTuple):
    # [N, 8] row of the block table, first token in the step, tokens, position of the first, segment,
    # segments, slot of the partial results, unused
    items: Columns
    merges: Columns  # [M, 4] first slot, segments, first token in the step, tokens
    num_slots: int

    def at_tables(self, start: int, width: int) -> Columns:
        """Return the items with addresses in flat tables; the step's table begins at `start`."""
        items = self.items.copy()
        items[:, 0] = start + items[:, 0] * width
        return items

    def padded(self, num_items: int, num_merges: int) -> "WorkList":
        """Add items and merges that have no effect."""
        items = np.zeros((num_items, ITEM_SIZE), np.int32)
        items[:, _SEGMENTS] = 1
        items[: len(self.items)] = self.items
        merges = np.zeros((num_merges, MERGE_SIZE), np.int32)
        merges[: len(self.merges)] = self.merges
        return WorkList(items, merges, self.num_slots)


def most_items(size: int, kv_heads: int, programs: int) -> tuple[int, int]:
    """Return the maximum numbers of items and merges of up to `size` decodes."""
    if size * kv_heads >= programs:
        return size, 0
    return size + programs // kv_heads, size


def work_list(
    computed: Ints,
    new: Ints,
    *,
    tokens_per_item: int,
    window: int | None,
    kv_heads: int,
    programs: int,
    padded_to: int = 0,
) -> WorkList:
    """Return the items of B requests with `new` [B] tokens after `computed` [B] tokens.

    Contexts are split if the items, at least `padded_to`, need fewer than `programs` programs.
    """
    request, token, tokens, position = token_parts(computed, new, tokens_per_item)  # [items]
    keys = position + tokens
    if window is not None:
        keys = np.minimum(keys, tokens + window - 1)
    split_allowed = max(len(keys), padded_to) * kv_heads < programs
    segments = _segments(keys, kv_heads, programs) if split_allowed else np.ones_like(keys)
    item = np.repeat(np.arange(len(request)), segments)  # [N]
    split = segments > 1
    slots = np.where(split, segments, 0)
    first_slot = np.cumsum(slots) - slots
    segment = places_within(segments)
    slot = np.where(split[item], first_slot[item] + segment, 0)
    items = columns(request[item], token[item], tokens[item], position[item], segment, segments[item], slot, slot)
    merges = columns(first_slot[split], segments[split], token[split], tokens[split])
    return WorkList(items, merges, int(slots.sum()))


def _segments(keys: Ints, kv_heads: int, programs: int) -> Ints:
    share = max(MIN_SEGMENT_KEYS, -(-int(keys.sum()) * kv_heads // programs))
    return np.minimum(-(-keys // share), MAX_SEGMENTS)
