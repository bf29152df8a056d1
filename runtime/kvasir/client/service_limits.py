"""What a request may ask for, given the engines that are ready: the length of the context, and priorities."""

from collections.abc import Mapping

from kvasir.link.frontend_end.remote_engine import RemoteEngine


class ServiceLimits:
    """Reads `engines`, a live view, at each question: the limits change as engines come and go."""

    def __init__(self, max_model_len: int, engines: Mapping[str, RemoteEngine]) -> None:
        """`max_model_len`: tokens that the model can take, however large the engines are."""
        self._max_model_len = max_model_len
        self._engines = engines

    def max_model_len(self) -> int:
        """Return the tokens of prompt and output together that every ready engine can take."""
        announced = [engine.capacity.max_model_len for engine in self._engines.values() if engine.capacity]
        return min([self._max_model_len, *announced])

    def takes_priority(self) -> bool:
        """Return whether every usable engine schedules by priority."""
        return all(engine.serves_by_priority for engine in self._engines.values() if engine.usable)
