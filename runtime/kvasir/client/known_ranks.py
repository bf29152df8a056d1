"""The data-parallel ranks of all engines that this frontend has seen."""

from typing import Final

from kvasir.client.request_errors import InvalidRequest
from kvasir.link.frontend_end.remote_engine import RemoteEngine

RANK_FIELD: Final = "data_parallel_rank"


class KnownRanks:
    def __init__(self) -> None:
        self._ranks: set[int] = set()

    def joined(self, engine: RemoteEngine) -> None:
        self._ranks.add(engine.rank)

    def check(self, rank: int) -> None:
        """Raise InvalidRequest for an unknown rank, once an engine has joined."""
        if not self._ranks or rank in self._ranks:
            return
        known = sorted(self._ranks)
        ranks = f"ranks {', '.join(map(str, known))}" if len(known) > 1 else f"rank {known[0]}"
        raise InvalidRequest(
            f"{RANK_FIELD} is {rank}, and this service has {ranks}: choose one of them, or leave the field out",
            RANK_FIELD,
        )
