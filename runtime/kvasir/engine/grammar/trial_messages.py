"""Messages between the engine and its trial process: msgpack, each after its length in four bytes."""

from typing import BinaryIO, Final

import msgspec

from kvasir.request.constraint import Grammar

MAX_TRIAL_CPU_SECONDS: Final = 0.4  # a bomb ends here, and a grammar that passes takes as long again in the engine
MAX_TRIAL_SECONDS: Final = 20.0  # trials have a low priority: a harmless one can take seconds on a busy machine
MAX_TRIAL_BYTES: Final = 512 << 20  # address space of one trial, on top of the tokenizer's process
MAX_RUNNING_TRIALS: Final = 4
_LENGTH_BYTES: Final = 4


class Trial(msgspec.Struct, frozen=True, array_like=True):
    number: int
    grammar: Grammar


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    number: int
    refusal: str  # why the grammar is refused; "" if it compiles within the limits
    lasting: bool = True  # another trial would come to the same result


class Ready(msgspec.Struct, frozen=True, array_like=True):
    failure: str  # why it could not, and ends; ""


def write_message(file: BinaryIO, message: msgspec.Struct) -> None:
    packed = msgspec.msgpack.encode(message)
    file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + packed)
    file.flush()


def read_message(file: BinaryIO) -> bytes | None:
    """Return the next message; None at the end of the file, also in the middle of a message."""
    head = _read(file, _LENGTH_BYTES)
    return None if head is None else _read(file, int.from_bytes(head, "little"))


def _read(file: BinaryIO, length: int) -> bytes | None:
    # an unbuffered pipe may return fewer bytes
    parts = bytearray()
    while len(parts) < length:
        part = file.read(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
