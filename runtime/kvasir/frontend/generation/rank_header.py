"""The header with the data-parallel rank of a request, as routers for vLLM send it."""

import re
from typing import Final

from starlette.types import Scope

from kvasir.client.known_ranks import RANK_FIELD
from kvasir.frontend.errors import bad_field

RANK_HEADER: Final = "X-data-parallel-rank"

_NAME: Final = RANK_HEADER.lower().encode()
_RANK: Final = re.compile(rb"[0-9]{1,9}")


def header_rank(scope: Scope, field: int | None = None) -> int | None:
    """Return the rank of the header or of the body's `field`; None: any. Raises ApiError if they differ."""
    text = None
    for name, value in scope["headers"]:
        if name == _NAME:
            text = value
            break
    if text is None:
        return field
    if not _RANK.fullmatch(text):
        raise bad_field(RANK_FIELD, f"the header {RANK_HEADER} is not a rank: send a number of 0 or more")
    if field not in (None, int(text)):
        raise bad_field(
            RANK_FIELD, f"{RANK_FIELD} is {field} and the header {RANK_HEADER} is {int(text)}: send one of the two"
        )
    return int(text)
