"""PoolParams: what a request of kind POOL makes of its prompt's hidden states."""

from typing import Final

import msgspec

# Numbers of one vector, as float32 on the link.
MAX_POOLED_BYTES: Final = 2**20


class PoolParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    dimensions: int | None = None  # the first numbers of the vector; None: all
    normalize: bool | None = None  # to length 1; None: as the model's files say
    activate: bool = True  # scores: sigmoid or softmax of the logits
    # Place of the first token of the second text of a pair, for token types; None: there is one text.
    second_text: int | None = None
