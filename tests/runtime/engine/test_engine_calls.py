import msgspec

from kvasir.engine.engine_calls import CallRefused, arguments_of
from kvasir.link.protocol import Call, Result
from runtime.engine.core_harness import CoreHarness


class LoadAdapter(msgspec.Struct, frozen=True):
    name: str
    rank: int = 8


class Loaded(msgspec.Struct, frozen=True):
    slot: int


def load(call: Call) -> Result:
    asked = arguments_of(call, LoadAdapter)
    if asked.rank > 64:
        raise CallRefused(f"adapter {asked.name} has rank {asked.rank}, and this engine takes up to 64")
    return Result(call.id, value=msgspec.msgpack.encode(Loaded(asked.rank)))


def answer(arguments: bytes) -> Result:
    core = CoreHarness().core
    core.calls.register("load_adapter", load)
    return core.call(Call(5, "load_adapter", arguments))


def test_call_passes_arguments_and_returns_the_value() -> None:
    result = answer(msgspec.msgpack.encode(LoadAdapter("poet", 16)))
    assert (result.id, result.error) == (5, "")
    assert msgspec.msgpack.decode(result.value, type=Loaded) == Loaded(16)


def test_call_that_is_refused_returns_why() -> None:
    result = answer(msgspec.msgpack.encode(LoadAdapter("poet", 128)))
    assert result == Result(5, "adapter poet has rank 128, and this engine takes up to 64")


def test_call_with_malformed_arguments_names_the_field() -> None:
    result = answer(msgspec.msgpack.encode({"name": 3}))
    assert "the arguments of load_adapter are not valid" in result.error
    assert "$.name" in result.error
    assert answer(b"").error
