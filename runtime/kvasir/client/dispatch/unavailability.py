"""The errors and texts for requests that no engine can take now."""

from collections.abc import Mapping
from typing import Final

from kvasir.client.engine_starts import DEFAULT_RETRY_AFTER, EngineStarts
from kvasir.client.live_request import LiveRequest
from kvasir.client.request_errors import EngineUnavailable, RequestFailed
from kvasir.link.frontend_end.remote_engine import RemoteEngine

NOT_UNDERSTOOD: Final = (
    "every engine that is ready is of an older version, which does not have a parameter of this request: leave the "
    "parameter out, or try again after the engines have been updated"
)
NO_ADAPTERS: Final = (
    "no engine accepts LoRA adapters: start the engines with --enable-lora (in an InferenceService: set "
    "spec.model.loraAdapters), or name the model itself"
)
WEIGHTS_REPLACED: Final = (
    "the weights of the model were replaced while this answer was generated, and no engine has the earlier ones: "
    "send the request again"
)


class Unavailability:
    def __init__(self, engines: Mapping[str, RemoteEngine], starts: EngineStarts) -> None:
        self._engines = engines
        self._starts = starts

    def closed(self) -> EngineUnavailable:
        return EngineUnavailable("the frontend is shutting down: try again", DEFAULT_RETRY_AFTER)

    def weights_replaced(self) -> EngineUnavailable:
        return EngineUnavailable(WEIGHTS_REPLACED, self._starts.retry_after())

    def not_understood(self) -> EngineUnavailable:
        return EngineUnavailable(NOT_UNDERSTOOD, self._starts.retry_after())

    def no_adapters(self, request: LiveRequest) -> Exception | None:
        """Return the error of a request for an adapter that no present or starting engine accepts, or None."""
        if not request.adapter_digest:
            return None
        engines = self._of(request.data_parallel_rank)
        left = [engine for engine in engines if engine.incarnation not in request.refused_by]
        if not engines or any(engine.takes_adapters or engine.capacity is None for engine in left):
            return None
        error = request.adapter_error or EngineUnavailable(NO_ADAPTERS, self._starts.retry_after())
        if isinstance(error, EngineUnavailable) and request.lost_engines and request.output_token_ids:
            return None  # the successor of its engine may read the adapter
        return error

    def error(self, rank: int | None = None, limit: str = "") -> EngineUnavailable:
        """Return the error for this rank. `limit`: see `Holding.refusal`."""
        states = ", ".join(f"{engine.incarnation} is {engine.state}" for engine in self._of(rank))
        return EngineUnavailable(
            f"no engine{_of_rank(rank)} is ready ({states or 'none is connected'}){limit}: try again in a while",
            self._starts.retry_after(),
        )

    def lost_or(self, request: LiveRequest, error: Exception) -> Exception:
        """Return this error, or the one of a request with a lost engine."""
        if not request.lost_engines:
            return error
        # not 503, which invites the client to send what may have ended the engine
        return RequestFailed(f"the engine {request.lost_engines[-1]} was lost with this request, and {error}")

    def waits_for(self, rank: int | None) -> str:
        engines = self._of(rank)
        if any(engine.usable for engine in engines):
            return "waiting for room in an engine"
        return f"waiting for an engine{_of_rank(rank)}: {self._starts.describe(engines)}"

    def _of(self, rank: int | None) -> list[RemoteEngine]:
        return [engine for engine in self._engines.values() if rank is None or engine.rank == rank]


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f" of data-parallel rank {rank}"
