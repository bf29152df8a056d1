"""Encodes and decodes messages, also for a peer one protocol version away.

A receiver ignores appended fields, reads unknown enum values as a default, and skips and counts unknown messages.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, get_args

import msgspec

from kvasir.link.protocol import (
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    SINCE,
    FromEngine,
    FromFrontend,
    Hello,
    ProtocolError,
    Since,
    Welcome,
)

MAX_NAME_CHARACTERS: Final = 64

log = logging.getLogger(__name__)

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    name: str


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    name: str


_envelope = msgspec.msgpack.Decoder(_Envelope)


def encode(message: FromEngine | FromFrontend) -> bytes:
    return _encoder.encode(message)


class Codec:
    """The messages of one protocol version. Tests make a Codec of the next one."""

    def __init__(
        self,
        version: int = PROTOCOL_VERSION,
        from_engine: Any = FromEngine,
        from_frontend: Any = FromFrontend,
        since: Since = SINCE,
    ) -> None:
        if announced := {Hello, Welcome} & {*since.messages, *(owner for owner, _ in since.fields)}:
            names = ", ".join(sorted(kind.__name__ for kind in announced))
            raise ValueError(f"every version must understand {names}: give their new fields a default")
        self.version = version
        self._from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(from_engine)
        self._from_frontend: msgspec.msgpack.Decoder[FromFrontend] = msgspec.msgpack.Decoder(from_frontend)
        kinds = {*get_args(from_engine), *get_args(from_frontend)}
        self._names = frozenset(kind.__struct_config__.tag for kind in kinds)
        self._messages = since.messages
        self._fields = {kind: fields for kind in kinds if (fields := _later_fields(kind, since))}
        found = {field.name for fields in self._fields.values() for field in fields}
        if missing := {f"{owner.__name__}.{name}" for owner, name in since.fields} - found:
            raise ValueError(f"only fields of messages, and of structs in their fields: {', '.join(missing)}")

    def version_needed(self, message: FromEngine | FromFrontend) -> int:
        """Return the version that understands this message with the fields that are set."""
        needed = self._messages.get(type(message), 1)
        for field in self._fields.get(type(message), ()):
            if field.version > needed and field.read(message) != field.default:
                needed = field.version
        return needed

    def decode_from_engine(self, frame: bytes | memoryview) -> FromEngine | UnknownMessage:
        """Raises ProtocolError if it is not a message of an engine."""
        try:
            return self._from_engine.decode(frame)
        except _UNREADABLE as error:
            return self._unknown(frame, "an engine", error)

    def decode_from_frontend(self, frame: bytes | memoryview) -> FromFrontend | UnknownMessage:
        try:
            return self._from_frontend.decode(frame)
        except _UNREADABLE as error:
            return self._unknown(frame, "a frontend", error)

    def _unknown(self, frame: bytes | memoryview, sender: str, error: Exception) -> UnknownMessage:
        """Raises ProtocolError if a later version cannot have made this frame either."""
        try:
            name = _envelope.decode(frame).name
        except _UNREADABLE:
            name = ""
        if name in self._names or not name.isidentifier() or len(name) > MAX_NAME_CHARACTERS:
            raise ProtocolError(f"not a message of {sender}: {error}") from error
        return UnknownMessage(name)


@dataclass(frozen=True)
class _LaterField:
    name: str
    version: int
    default: object
    read: Callable[[object], object]


def _later_fields(kind: type[msgspec.Struct], since: Since) -> tuple[_LaterField, ...]:
    """Return the fields of `since` that a message of this type has, also in structs of its fields."""
    owners: list[tuple[type[msgspec.Struct], str]] = [(kind, "")]
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            owners.append((field.type, f"{field.name}."))
    return tuple(
        _LaterField(f"{owner.__name__}.{name}", version, _defaults(owner)[name], attrgetter(path + name))
        for owner, path in owners
        for (listed, name), version in since.fields.items()
        if listed is owner
    )


def _defaults(kind: type[msgspec.Struct]) -> Mapping[str, object]:
    return {
        field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


CODEC: Final = Codec()


class Agreement:
    def __init__(self, codec: Codec, peer: int = OLDEST_PROTOCOL) -> None:
        # `peer`: the version that the peer has announced
        self.skipped = 0
        self.codec = codec
        self.begin(peer)

    def begin(self, peer: int) -> None:
        self.version = min(self.codec.version, peer)
        self._logged = False

    def understands(self, message: FromEngine | FromFrontend) -> bool:
        """Return False if the message needs a later version."""
        return self.codec.version_needed(message) <= self.version

    def skip(self, peer: str, message: UnknownMessage) -> None:
        self.skipped += 1
        if not self._logged:
            self._logged = True
            log.warning(
                "%s sent a message that this version does not have: %s. Such messages are skipped until this side "
                "is updated",
                peer,
                message.name,
            )
