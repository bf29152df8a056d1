"""The messages between the leader of an engine and its members.

Each has two frames: the leader's incarnation, "" before the member has joined, and a struct in msgpack.

    member → leader   NodeHello until joined and prepared, then NodeHeartbeat
    leader → member   Joined or NodeRefused; when all are prepared, Setup
    member → leader   WorkerNews while a worker loads
    leader → member   Frame
    member → leader   Replies, one per frame, in order
    member → leader   Failed
    leader → member   NodeGoodbye
"""

from typing import Any, Final

import msgspec

from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.executor.processes.worker_messages import FromWorker
from kvasir.hub.model_info import ModelInfo
from kvasir.version import __version__
from kvasir_contract.reasons import Reason

NODES_PROTOCOL: Final = 1


class NodeTerms(msgspec.Struct, frozen=True):
    """All nodes of an engine need the same values; a refusal names each difference."""

    protocol: int
    version: str
    service_uid: str
    data_parallel_rank: int
    nnodes: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    enable_expert_parallel: bool
    model: str  # its fingerprint

    @classmethod
    def of(cls, config: EngineConfig, model: ModelInfo) -> "NodeTerms":
        executor = config.executor
        return cls(
            protocol=NODES_PROTOCOL,
            version=__version__,
            service_uid=config.link.service_uid,
            data_parallel_rank=config.parallel.data_parallel_rank,
            nnodes=config.nodes.nnodes,
            tensor_parallel_size=executor.tensor_parallel_size,
            pipeline_parallel_size=executor.pipeline_parallel_size,
            enable_expert_parallel=executor.enable_expert_parallel,
            model=model.fingerprint,
        )

    def difference(self, member: "NodeTerms") -> str:
        """Return the fields that differ, with both values; "" if there are none."""
        names = [name for name in self.__struct_fields__ if getattr(self, name) != getattr(member, name)]
        return "; ".join(
            f"{name.replace('_', '-')} is {getattr(self, name)!r} on node 0 and {getattr(member, name)!r} there"
            for name in names
        )


class NodeHello(msgspec.Struct, frozen=True, tag=True):
    node_rank: int
    terms: NodeTerms
    prepared: bool  # the weights are on its disk
    leader_address: str  # the IP address that the member has connected to


class NodeHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent by both sides every second."""


class WorkerNews(msgspec.Struct, frozen=True, tag=True):
    rank: int
    message: FromWorker


class Replies(msgspec.Struct, frozen=True, tag=True):
    """Replies to the oldest frame, by rank."""

    bodies: list[bytes]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A worker has ended, and the member ends too."""

    reason: Reason
    message: str
    raised: bool  # another worker's death may be the cause


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The member is to end, once the engine has finished its requests."""


class Described(msgspec.Struct, frozen=True, tag=True):
    question: int
    text: str


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The leader has accepted the member."""


class NodeRefused(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Setup(msgspec.Struct, frozen=True, tag=True):
    """Start these workers: all members are prepared."""

    settings: ResolvedEngine
    first_rank: int
    num_ranks: int
    store_port: int  # of the TCP store at the leader's address


class Frame(msgspec.Struct, frozen=True, tag=True):
    body: bytes


class Describe(msgspec.Struct, frozen=True, tag=True):
    question: int  # its number: an answer may be late
    ranks: list[int]


class NodeGoodbye(msgspec.Struct, frozen=True, tag=True):
    reason: str


FromMember = NodeHello | NodeHeartbeat | WorkerNews | Replies | Failed | Leaving | Described
FromLeader = Joined | NodeRefused | Setup | Frame | Describe | NodeHeartbeat | NodeGoodbye


class NodeProtocolError(Exception):
    """A message of another version, or from a peer that is not a node."""


_encoder: Final = msgspec.msgpack.Encoder()
_from_member: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(FromMember)
_from_leader: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(FromLeader)


def encode(incarnation: str, message: FromMember | FromLeader) -> list[bytes]:
    return [incarnation.encode(), _encoder.encode(message)]


def decode_from_member(frames: list[bytes]) -> tuple[str, FromMember]:
    return _decode(_from_member, frames)


def decode_from_leader(frames: list[bytes]) -> tuple[str, FromLeader]:
    return _decode(_from_leader, frames)


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", frames: list[bytes]) -> tuple[str, Any]:
    try:
        incarnation, body = frames
        return incarnation.decode(), decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise NodeProtocolError(f"not a message of this version: {error}") from error
