"""Reads the fields of a quantization_config, and refuses values by name."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kvasir.hub.hub_errors import HubError

NEXT_STEP: Final = "use another quantised version of the model, or the one that it was made from"


class Settings:
    """The fields of a quantization_config, or of an object in it."""

    def __init__(self, method: str, values: Mapping[str, Any]) -> None:
        self.method = method
        self.values = values

    def get(self, *names: str) -> Any:
        """Return the first of these fields that is not null."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def one_of(self, accepted: Collection[Any], *names: str, default: Any = None) -> Any:
        value = self.get(*names)
        value = default if value is None else value
        if not any(type(value) is type(other) and value == other for other in accepted):
            raise self.refusal(names[0], value, "one of " + ", ".join(map(str, accepted)))
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.one_of((True, False), name, default=default))

    def group(self, *names: str) -> int | None:
        """Return the inputs that share a scale. None (-1 in the config): all."""
        value = self.get(*names)
        if value == -1:
            return None
        return self.size(value, names[0])

    def size(self, value: Any, name: str) -> int:
        if type(value) is not int or value < 1:
            raise self.refusal(name, value, "a number of weights above 0")
        return value

    def names(self, *names: str) -> Sequence[str]:
        value = self.get(*names) or []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.refusal(names[0], value, "a list of names")
        return value

    def absent(self, name: str) -> None:
        """Raise HubError if a setting that is not supported is not empty."""
        if self.values.get(name):
            raise self.refusal(name, self.values[name], "empty")

    def part(self, name: str) -> "Settings":
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise self.refusal(name, value, "an object")
        return Settings(self.method, value)

    def refusal(self, name: str, value: Any, wanted: str) -> HubError:
        found = "missing" if value is None else repr(value)
        return HubError(f"{self.method} weights: {name} is {found[:200]} and must be {wanted}: {NEXT_STEP}")
