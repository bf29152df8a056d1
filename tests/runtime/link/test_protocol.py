"""The wire contract: every message survives the way, older and newer peers understand each other, malformed frames
do not pass the decoder."""

import contextlib
from types import UnionType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.link import protocol
from kvasir.link.codec import CODEC, encode
from kvasir.link.protocol import (
    Abort,
    AdaptersHeld,
    AddRequest,
    CacheEvents,
    Call,
    Dead,
    DraftStats,
    Draining,
    EngineStats,
    FailedStep,
    FinishReason,
    FromEngine,
    FromFrontend,
    Goodbye,
    Heartbeat,
    Hello,
    Logprobs,
    Outputs,
    Progress,
    ProtocolError,
    Ready,
    RefusalKind,
    Refused,
    RequestOutput,
    RequestProgress,
    Result,
    StartWave,
    StepRequest,
    Welcome,
)
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams
from kvasir.request.request_core import RequestCore, RequestKind
from kvasir.request.tokens import packed
from kvasir_contract.phases import Phase

STATS = EngineStats(*(3, 2, 100, 7), preemptions=1, unfinished_tokens=9, drafts=DraftStats(2, 8, (2, 1, 0, 0)))
FAILED_STEP = FailedStep("engine-0-aa", (StepRequest("r", b"\x01" * 16),))
HELLO = Hello(1, "uid", "engine-0-ab", 0, "node", "0.1", "fp", "th", Phase.LOADING, Progress(1, 2), FAILED_STEP)
decode_from_engine, decode_from_frontend = CODEC.decode_from_engine, CODEC.decode_from_frontend
PARAMS = SamplingParams(
    max_tokens=5,
    seed=-(2**63),
    temperature=0.5,
    stop_token_ids=(1, 2),
    ignore_eos=True,
    logit_bias=((3, -1.5),),
    bad_words=((4, 5), (6,)),
    logprobs=2,
)
LOGPROBS = Logprobs([-0.5], [2], [[7, 4]], [[-0.25, -0.5]])
READY = Ready(
    block_size=16,
    num_blocks=100,
    max_model_len=4096,
    max_num_seqs=64,
    features=("a",),
    max_queued_tokens=9,
    hash_algorithm="sha256",
    numerics="float32",
    max_num_batched_tokens=2048,
    kv_address="ipc:///run/kv",
    weights="0a",
    max_loras=4,
    max_lora_rank=16,
)
REFUSED = Outputs(
    [RequestOutput("r", 0, 0, [], FinishReason.ERROR, error="why", refusal=RefusalKind.OVERLOADED)], STATS
)
HEARTBEAT = Heartbeat(STATS, step_age=1.5, step_limit=30.0, shows_load=False, stuck=FAILED_STEP)
ADD = AddRequest("r", 3, packed([1, 2**31]), packed([7]), PARAMS, age=1.5, alone=True, kv_source="ipc:///run/kv")
ADAPTER = Adapter("sql", "hf://org/sql@main", "0f" * 32)
ADAPTED = AddRequest("r", 1, packed([1]), b"", PARAMS, adapter=ADAPTER)
CONSTRAINED = AddRequest(
    "r",
    3,
    packed([1]),
    b"",
    PARAMS,
    constraint=OutputConstraint(
        Grammar(GrammarKind.JSON_SCHEMA, "{}", any_whitespace=False, whitespace_pattern=" ?"),
        reasoning_end=(5, 6),
        thinking_budget=0,
        reasoning_start=4,
    ),
)

CORE = RequestCore(PARAMS, -2, "salt", CONSTRAINED.constraint, RequestKind.POOL, PoolParams(dimensions=2), ADAPTER)

FROM_ENGINE: list[FromEngine] = [
    HELLO,
    READY,
    Outputs([RequestOutput("r", 2, 17, [4, 5], FinishReason.STOP, stop_token_id=5)], STATS),
    Outputs([RequestOutput("r", 1, 0, [4], progress=RequestProgress(2, 0.5, 1.5))], STATS),
    REFUSED,
    Draining(60.0),
    Dead("out of memory", FAILED_STEP),
    HEARTBEAT,
    Goodbye(),
    Outputs([RequestOutput("r", 0, 0, [4], logprobs=LOGPROBS, prompt_logprobs=LOGPROBS)], STATS),
    Result(3, "why"),
    Result(3, values=["path"], value=b"\x91\x01"),
    CacheEvents(4, bytes(32), bytes(16), reset=True),
    AdaptersHeld((ADAPTER,)),
    Outputs([RequestOutput("r", 1, 0, [], FinishReason.STOP, pooled=bytes(8))], STATS),
]
FROM_FRONTEND: list[FromFrontend] = [
    Welcome(protocol=1, frontend="frontend-ab", cache_events=True),
    Refused("another model", retry=False),
    ADD,
    CONSTRAINED,
    ADAPTED,
    Abort(["r", "s"]),
    Heartbeat(),
    Goodbye(),
    Call(3, "reset_prefix_cache"),
    Call(3, "load_adapter", b"\x91\x01"),
    StartWave(),
]


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_what_an_engine_sends_arrives_unchanged(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("message", FROM_FRONTEND, ids=lambda message: type(message).__name__)
def test_what_a_frontend_sends_arrives_unchanged(message: FromFrontend) -> None:
    assert decode_from_frontend(encode(message)) == message


def test_every_message_is_covered_here() -> None:
    def kinds(union: UnionType) -> set[type]:
        return set(union.__args__)

    assert kinds(protocol.FromEngine) == {type(message) for message in FROM_ENGINE}
    assert kinds(protocol.FromFrontend) == {type(message) for message in FROM_FRONTEND}


@pytest.mark.parametrize(
    "frame",
    [encode(message) for message in FROM_FRONTEND if not isinstance(message, Heartbeat | Goodbye)],
)
def test_an_engine_cannot_send_what_is_a_frontends(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_engine(frame)


@pytest.mark.parametrize("frame", [encode(message) for message in FROM_ENGINE[:6]])
def test_a_frontend_cannot_send_what_is_an_engines(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_frontend(frame)


# ------------------------------------------------------------------------------------------- versions N and N-1


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_fields_that_a_newer_peer_appended_are_ignored(message: FromEngine) -> None:
    fields = msgspec.msgpack.decode(encode(message))
    frame = msgspec.msgpack.encode([*fields, "new", {"in": ["version", 2]}])
    assert decode_from_engine(frame) == message


def test_appended_fields_of_an_output_are_ignored() -> None:
    name, outputs, stats = msgspec.msgpack.decode(encode(REFUSED))
    frame = msgspec.msgpack.encode([name, [[*outputs[0], [0.5]]], [*stats, 9]])
    assert decode_from_engine(frame) == REFUSED


def test_fields_missing_from_an_older_peer_have_defaults() -> None:
    """As from before `progress`, `features`, `max_queued_tokens`, `hash_algorithm`, `preemptions`, `saw_draining`,
    `step_limit`, `block_hashes`, `ignore_eos`, `crashed`, `stuck`, `alone`, `max_num_batched_tokens`, `kv_address`
    or `weights`."""

    def without_last(message: FromEngine | FromFrontend, count: int = 1) -> bytes:
        return msgspec.msgpack.encode(msgspec.msgpack.decode(encode(message))[:-count])

    assert decode_from_engine(without_last(HELLO, 2)) == msgspec.structs.replace(HELLO, progress=None, crashed=None)
    assert decode_from_engine(without_last(FROM_ENGINE[6])) == Dead("out of memory")
    without_loras = msgspec.structs.replace(READY, max_loras=0, max_lora_rank=0)
    assert decode_from_engine(without_last(READY, 2)) == without_loras
    assert decode_from_engine(without_last(READY, 3)) == msgspec.structs.replace(without_loras, weights="")
    without_kv = msgspec.structs.replace(without_loras, kv_address="", weights="")
    assert decode_from_engine(without_last(READY, 4)) == without_kv
    without_steps = msgspec.structs.replace(without_loras, max_num_batched_tokens=0, kv_address="", weights="")
    assert decode_from_engine(without_last(READY, 5)) == without_steps
    old = msgspec.structs.replace(without_steps, numerics="")
    assert decode_from_engine(without_last(READY, 6)) == old
    assert decode_from_engine(without_last(READY, 7)) == msgspec.structs.replace(old, hash_algorithm="blake2b")
    older = msgspec.structs.replace(old, max_queued_tokens=0, hash_algorithm="blake2b")
    assert decode_from_engine(without_last(READY, 8)) == older
    oldest = msgspec.structs.replace(older, features=())
    assert decode_from_engine(without_last(READY, 9)) == oldest
    assert decode_from_engine(without_last(HEARTBEAT, 6)) == Heartbeat()
    name, [refused], stats = msgspec.msgpack.decode(encode(REFUSED))
    decoded = decode_from_engine(msgspec.msgpack.encode([name, [refused[:11]], stats[:5]]))
    assert isinstance(decoded, Outputs)
    [output] = decoded.outputs
    assert output == msgspec.structs.replace(REFUSED.outputs[0], refusal=None)
    add = msgspec.msgpack.decode(encode(ADD))
    add[5] = add[5][:2]
    added = decode_from_frontend(msgspec.msgpack.encode(add[:6]))
    assert isinstance(added, AddRequest)
    assert added.params == SamplingParams(max_tokens=5, seed=-(2**63))


def test_a_kind_of_refusal_of_a_newer_peer_is_unknown() -> None:
    name, [refused], stats = msgspec.msgpack.decode(encode(REFUSED))
    frame = msgspec.msgpack.encode([name, [[*refused[:11], "too late", *refused[12:]]], stats])
    decoded = decode_from_engine(frame)
    assert isinstance(decoded, Outputs)
    assert decoded.outputs[0].refusal is RefusalKind.UNKNOWN


# ------------------------------------------------------------------------------------------ malformed frames


def _only_protocol_errors(frame: bytes) -> None:
    for decode in (decode_from_engine, decode_from_frontend):
        with contextlib.suppress(ProtocolError):
            decode(frame)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(frame: bytes) -> None:
    _only_protocol_errors(frame)


@given(st.sampled_from([*FROM_ENGINE, *FROM_FRONTEND]), st.data())
def test_damaged_messages_raise_nothing_but_protocol_errors(
    message: FromEngine | FromFrontend, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    _only_protocol_errors(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x92\xa7Goodbye" + b"\x91" * 200_000 + b"\x90", id="nested without end"),
        pytest.param(b"\x93\xa7Outputs\xdd\xff\xff\xff\xff", id="a list of a huge length"),
        pytest.param(b"\x92\xa4Dead\xdb\xff\xff\xff\xff", id="a string of a huge length"),
        pytest.param(b"\x92\xa4Dead\xa1\xff", id="no UTF-8"),
        pytest.param(encode(Goodbye()) + b"x", id="more after the message"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_malicious_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_engine(frame)


def test_add_request_carries_every_field_of_the_core() -> None:
    plain = RequestCore(PARAMS)
    assert all(getattr(CORE, name) != getattr(plain, name) for name in RequestCore.__struct_fields__[1:])
    message = AddRequest.of(CORE, "r", 1, packed([1]), b"")
    received = CODEC.decode_from_frontend(encode(message))
    assert isinstance(received, AddRequest)
    assert received.core == CORE


def test_a_request_of_another_kind_goes_to_no_older_engine() -> None:
    assert CODEC.version_needed(ADD) == 1
    assert CODEC.version_needed(msgspec.structs.replace(ADD, kind=RequestKind.POOL)) == 2


def test_a_call_with_arguments_goes_to_no_older_engine() -> None:
    assert CODEC.version_needed(Call(1, "reset_prefix_cache")) == 1
    assert CODEC.version_needed(Call(1, "load_adapter", b"\x90")) == 2
