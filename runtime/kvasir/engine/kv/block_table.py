"""BlockTable: the blocks of one request in one KV group."""

from kvasir.engine.kv.prefix_cache import NULL_BLOCK


class BlockTable:
    """Block ids by place, each place for `block_size` tokens.

    | null: freed, or before the window of a cached prefix | blocks of this request |
     └────────────────────── first ──────────────────────┘
    """

    __slots__ = ("first", "ids")

    def __init__(self, ids: list[int], first: int = 0) -> None:
        self.ids = ids
        self.first = first

    @property
    def blocks(self) -> list[int]:
        return self.ids[self.first :] if self.first else self.ids

    def cut(self, first: int) -> list[int]:
        """Replace the blocks before this place by null blocks; return them."""
        freed = self.ids[self.first : first]
        self.ids[self.first : first] = [NULL_BLOCK] * len(freed)
        self.first += len(freed)
        return freed
