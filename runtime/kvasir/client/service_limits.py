"""The limits that engines set for requests."""

from collections.abc import Collection

from kvasir.link.frontend_end.remote_engine import RemoteEngine


# Computed when engines change, because each request reads the limits several times.
class ServiceLimits:
    def __init__(self, max_model_len: int, *, takes_priority: bool = True) -> None:
        """`max_model_len`: tokens that the model can take."""
        self._model_len = max_model_len
        self.max_model_len = max_model_len
        """Tokens of prompt and output that every ready engine can take."""
        self.takes_priority = takes_priority

    def engines_changed(self, engines: Collection[RemoteEngine]) -> None:
        announced = [engine.capacity.max_model_len for engine in engines if engine.capacity]
        self.max_model_len = min([self._model_len, *announced])
        self.takes_priority = all(engine.serves_by_priority for engine in engines if engine.usable)
