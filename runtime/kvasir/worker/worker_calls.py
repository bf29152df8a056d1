"""Operations of a worker and its extension that are called by name.

Methods need the mark `worker_call`, and msgpack arguments that fit their annotations.
"""

import inspect
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from kvasir.config.options import ConfigError, flag_of

_MARK: Final = "_is_worker_call"
Method = TypeVar("Method", bound=Callable[..., Any])


class WorkerCall(msgspec.Struct, frozen=True):
    method: str
    arguments: dict[str, msgspec.Raw] = {}
    positional: list[msgspec.Raw] = []

    @classmethod
    def of(cls, method: str, /, *positional: Any, **arguments: Any) -> "WorkerCall":
        # Raises TypeError for a type that msgpack does not have.
        return cls(
            method, {name: _packed(value) for name, value in arguments.items()}, list(map(_packed, positional))
        )


class WorkerResult(msgspec.Struct, frozen=True):
    value: Any = None
    error: str = ""


class CallError(ValueError):
    pass


def worker_call(method: Method) -> Method:
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True)
class _Operation:
    method: Callable[..., Any]
    parameters: dict[str, Any]
    required: frozenset[str]


class WorkerCalls:
    def __init__(self, *owners: object, of_engine: Collection[str] = ()) -> None:
        # Raises ConfigError if two owners share a name. `answer` rejects operations `of_engine`.
        self._operations: dict[str, _Operation] = {}
        self._of_engine = frozenset(of_engine)
        for owner in owners:
            for name in calls_of(owner):
                method = getattr(owner, name)
                if name in self._operations:
                    raise ConfigError(f"{flag_of('worker_extension_cls')}: the worker has a call {name!r} already")
                self._operations[name] = _operation(method)

    def run(self, call: WorkerCall) -> Any:
        # Raises CallError, and any error of the method.
        operation = self._operations.get(call.method)
        if operation is None:
            raise self._unknown(call.method)
        arguments = _by_name(call, operation)
        if wrong := (arguments.keys() - operation.parameters.keys()) | (operation.required - arguments.keys()):
            raise CallError(f"{call.method}: the parameters {', '.join(sorted(wrong))} are unknown or missing")
        return operation.method(
            **{name: _decoded(call.method, name, raw, operation) for name, raw in arguments.items()}
        )

    def answer(self, call: WorkerCall) -> WorkerResult:
        """Return the result, or the error as text: the worker goes on."""
        try:
            if call.method in self._of_engine:
                raise self._unknown(call.method)
            return WorkerResult(msgspec.msgpack.decode(_packed(self.run(call))))
        except Exception as error:
            return WorkerResult(error=f"{type(error).__name__}: {error}")

    def _unknown(self, method: str) -> CallError:
        known = ", ".join(sorted(self._operations.keys() - self._of_engine)) or "none"
        return CallError(f"no call {method!r}: there are {known}; --worker-extension-cls adds calls")


def calls_of(owner: object) -> list[str]:
    return [name for name, method in inspect.getmembers(owner, callable) if getattr(method, _MARK, False)]


def _operation(method: Callable[..., Any]) -> _Operation:
    hints = typing.get_type_hints(method)
    parameters = inspect.signature(method).parameters
    required = frozenset(name for name, each in parameters.items() if each.default is each.empty)
    return _Operation(method, {name: hints.get(name, Any) for name in parameters}, required)


def _packed(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def _by_name(call: WorkerCall, operation: _Operation) -> dict[str, msgspec.Raw]:
    names = list(operation.parameters)[: len(call.positional)]
    if len(names) < len(call.positional):
        raise CallError(f"{call.method} has {len(names)} parameters, and got {len(call.positional)} arguments")
    if twice := [name for name in names if name in call.arguments]:
        raise CallError(f"{call.method}: the parameter {twice[0]} has two arguments")
    return dict(zip(names, call.positional, strict=True)) | call.arguments


def _decoded(method: str, name: str, raw: msgspec.Raw, operation: _Operation) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=operation.parameters[name])
    except msgspec.MsgspecError as error:
        raise CallError(f"{method}: parameter {name}: {error}") from error
