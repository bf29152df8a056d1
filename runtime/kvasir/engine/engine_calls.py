"""EngineCalls: the operations that a frontend calls by name (protocol.Call)."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from kvasir.engine.kv.kv_manager import CacheInUse
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.executor.executor import Executor
from kvasir.link.protocol import Call, Result
from kvasir.worker.worker_calls import WorkerCall

log = logging.getLogger(__name__)

WORKER_CALLS: Final = ("start_profile", "stop_profile")

Arguments = TypeVar("Arguments", bound=msgspec.Struct)


class CallRefused(Exception):
    """The call cannot be done; the message is for the caller."""


class EngineCalls:
    """Handlers by method, which run in the loop's thread between two steps."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._handlers: dict[str, Callable[[Call], Result]] = {"reset_prefix_cache": self._reset_prefix_cache}
        self._handlers.update(dict.fromkeys(WORKER_CALLS, self._call_workers))

    def register(self, method: str, handler: Callable[[Call], Result]) -> None:
        assert method not in self._handlers
        self._handlers[method] = handler

    def answer(self, call: Call) -> Result:
        handler = self._handlers.get(call.method)
        if handler is None:
            return Result(call.id, f"this engine has no call {call.method!r}")
        try:
            return handler(call)
        except CallRefused as refusal:
            return Result(call.id, str(refusal))

    def _reset_prefix_cache(self, call: Call) -> Result:
        try:
            self._scheduler.blocks.reset_prefix_cache()
        except CacheInUse as error:
            raise CallRefused(str(error)) from error
        log.info("the prefix cache is empty: a frontend asked for it")
        return Result(call.id)

    def _call_workers(self, call: Call) -> Result:
        results = self._executor.call(WorkerCall(call.method))
        error = next((each.error for each in results if each.error), "")
        return Result(call.id, error, [str(each.value or "") for each in results])


def arguments_of(call: Call, kind: type[Arguments]) -> Arguments:
    """Return the arguments of a call. Raises CallRefused if they are malformed."""
    try:
        return msgspec.msgpack.decode(call.arguments, type=kind)
    except msgspec.MsgspecError as error:
        raise CallRefused(f"the arguments of {call.method} are not valid: {error}") from error
