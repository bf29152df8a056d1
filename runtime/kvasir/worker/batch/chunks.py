"""StepChunks: the tokens that a step computes, by request. A row with drafts becomes several chunks of one token:

    known t1 t2 t3, computed t1 t2, drafts d4 d5   →   t3 | d4 | d5, and a token is sampled after each

They have the bits of decodes: a step writes all K and V before it reads any, and each chunk reads up to its own.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.step import ScheduledRow

Ints = npt.NDArray[np.int64]
Drafts = Mapping[int, tuple[int, ...]]  # by place in the step

NO_DRAFTS: Final[Drafts] = {}
# Larger than every context: prefills come after decodes.
_PREFILL: Final = 2**40


class StepChunks(NamedTuple):
    """B chunks, decodes first."""

    rows: Ints  # [B] of the table
    computed: Ints  # [B] earlier tokens
    new: Ints  # [B] tokens
    places: Ints  # [B] in the step
    are_single: bool  # each has one token
    ahead: Ints | None  # [B] drafts up to the chunk's end; None: no row has drafts
    drafts: Drafts


def chunks_of(scheduled: Sequence[ScheduledRow], table: RequestTable) -> StepChunks:
    """Return the chunks in the order of the batch. Writes drafts behind the known tokens of their rows."""
    count = len(scheduled)
    rows = np.fromiter((table.row_of(row.request_id) for row in scheduled), np.int64, count)
    computed = np.fromiter((row.num_computed_tokens for row in scheduled), np.int64, count)
    new = np.fromiter((row.num_new_tokens for row in scheduled), np.int64, count)
    are_single = bool((new == 1).all())  # decodes, and prefills of one token
    drafts = NO_DRAFTS if are_single else _drafts(scheduled)
    if not drafts:
        order = np.argsort(computed if are_single else _sort_keys(computed, new), kind="stable")
        return StepChunks(rows[order], computed[order], new[order], order, are_single, None, NO_DRAFTS)
    for place, token_ids in drafts.items():
        table.write_drafts(int(rows[place]), token_ids)
    parts = np.ones(count, np.int64)
    parts[list(drafts)] = new[list(drafts)]
    places = np.repeat(np.arange(count), parts)
    ahead = np.arange(len(places)) - np.repeat(np.cumsum(parts) - parts, parts)
    computed = computed[places] + ahead
    new = np.where(parts > 1, 1, new)[places]
    order = np.argsort(_sort_keys(computed, new), kind="stable")  # keeps the chunks of a row in their order
    places = places[order]
    return StepChunks(
        rows[places], computed[order], new[order], places, bool((new == 1).all()), ahead[order], drafts
    )


def _drafts(scheduled: Sequence[ScheduledRow]) -> Drafts:
    return {place: row.draft_token_ids for place, row in enumerate(scheduled) if row.draft_token_ids}


def _sort_keys(computed: Ints, new: Ints) -> Ints:
    return np.where(new == 1, computed, _PREFILL * (1 + (computed > 0)) + new)
