"""What a request may ask for, given the engines that are ready: the length of the context, and priorities."""

from collections.abc import Collection

from kvasir.link.frontend_end.remote_engine import RemoteEngine


class ServiceLimits:
    """The limits now. They are computed when engines change, because every request reads them several times."""

    def __init__(self, max_model_len: int, *, takes_priority: bool = True) -> None:
        """`max_model_len`: tokens that the model can take, however large the engines are."""
        self._model_len = max_model_len
        self.max_model_len = max_model_len
        """Tokens of prompt and output together that every ready engine can take."""
        self.takes_priority = takes_priority
        """Whether every usable engine schedules by priority."""

    def engines_changed(self, engines: Collection[RemoteEngine]) -> None:
        """Compute the limits of these engines."""
        announced = [engine.capacity.max_model_len for engine in engines if engine.capacity]
        self.max_model_len = min([self._model_len, *announced])
        self.takes_priority = all(engine.serves_by_priority for engine in engines if engine.usable)
