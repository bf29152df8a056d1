"""The limits of the engines on requests."""

from collections.abc import Collection
from typing import Final

from kvasir.client.request_errors import InvalidRequest
from kvasir.link.frontend_end.remote_engine import RemoteEngine


# computed when engines change, since each request reads them several times
class ServiceLimits:
    def __init__(self, max_model_len: int, *, takes_priority: bool = True) -> None:
        self._model_len = max_model_len
        self.max_model_len = max_model_len
        """Tokens of prompt and output that every ready engine can take."""
        self.takes_priority = takes_priority

    def engines_changed(self, engines: Collection[RemoteEngine]) -> None:
        announced = [engine.capacity.max_model_len for engine in engines if engine.capacity]
        self.max_model_len = min([self._model_len, *announced])
        self.takes_priority = all(engine.serves_by_priority for engine in engines if engine.usable)

    def check_priority(self, priority: int) -> None:
        """Raise InvalidRequest for a priority that the engines would not heed."""
        if priority and not self.takes_priority:
            raise InvalidRequest(
                "priority is not used here: start the engines with --scheduling-policy priority, or leave it out",
                "priority",
            )


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
