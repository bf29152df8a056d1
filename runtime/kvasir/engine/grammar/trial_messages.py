"""Messages to and from the trial process: msgpack after a length of four bytes."""

from typing import BinaryIO, Final

import msgspec

from kvasir.request.constraint import Grammar

MAX_TRIAL_CPU_SECONDS: Final = 0.4  # a bomb ends here; the engine compiles as long again
MAX_TRIAL_SECONDS: Final = 20.0  # harmless trials take seconds on a busy machine, at their low priority
MAX_TRIAL_BYTES: Final = 512 << 20  # address space, on top of the tokenizer's process
MAX_RUNNING_TRIALS: Final = 4
_LENGTH_BYTES: Final = 4


class Trial(msgspec.Struct, frozen=True, array_like=True):
    number: int
    grammar: Grammar


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    number: int
    refusal: str  # "": it compiles within the limits
    lasting: bool = True  # another trial would have the same result


class Ready(msgspec.Struct, frozen=True, array_like=True):
    failure: str  # "": it can compile


def write_message(file: BinaryIO, message: msgspec.Struct) -> None:
    packed = msgspec.msgpack.encode(message)
    file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + packed)
    file.flush()


def read_message(file: BinaryIO) -> bytes | None:
    """Return the next message; None at the end of the file, also within a message."""
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
