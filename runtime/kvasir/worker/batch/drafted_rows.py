"""DraftedRow: which drafts of a row equal the tokens that were sampled in their places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from kvasir.worker.batch.chunks import Drafts
from kvasir.worker.batch.request_table import HeldRow, RequestTable

# Marks NaN rows on the device: the host waits for tokens only.
NAN_TOKEN: Final = -1


@dataclass(frozen=True)
class DraftedRow:
    held: HeldRow
    drafts: tuple[int, ...]
    places: list[int]  # [1 + drafts] of the sampled tokens, in order

    def accepted(self, chosen: Sequence[int]) -> list[int]:
        """Return the drafts that were chosen too, up to the first that was not, and one token more."""
        drawn: list[int] = []
        for place, draft in zip_longest(self.places, self.drafts):
            drawn.append(chosen[place])
            if chosen[place] != draft:
                break
        # NaN after an accepted draft comes again in the next step, as it would without drafts.
        return drawn[:-1] if drawn[-1] == NAN_TOKEN and len(drawn) > 1 else drawn


DraftedRows = Mapping[int, DraftedRow]  # by place in the output
NO_DRAFTED_ROWS: Final[DraftedRows] = {}


def drafted_rows(drafts: Drafts, rows: Sequence[int], outputs: Sequence[int], table: RequestTable) -> DraftedRows:
    # rows [R] of the table, outputs [R]
    places: dict[int, list[int]] = {output: [] for output in drafts}
    for place, output in enumerate(outputs):
        if output in drafts:
            places[output].append(place)
    return {
        output: DraftedRow(table.held(rows[own[0]]), drafts[output], own) for output, own in places.items() if own
    }
