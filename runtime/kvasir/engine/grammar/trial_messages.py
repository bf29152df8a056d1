"""Messages between the engine and its trial process: msgpack, each after its length in four bytes."""

from typing import BinaryIO, Final

import msgspec

from kvasir.request.constraint import Grammar

MAX_TRIAL_CPU_SECONDS: Final = 0.4
"""For one grammar: what passes takes the same again in the engine. A bomb ends here, so its request is
answered within 2 s unless the machine is busy."""
MAX_TRIAL_SECONDS: Final = 20.0
"""For one grammar, from the start of its trial, which has a low priority: while the model uses all cores, a
harmless grammar can take seconds."""
MAX_TRIAL_BYTES: Final = 512 << 20
"""Of address space for one trial, on top of that of the process that holds the tokenizer."""
MAX_RUNNING_TRIALS: Final = 4
_LENGTH_BYTES: Final = 4


class Trial(msgspec.Struct, frozen=True, array_like=True):
    """To the trial process: compile this grammar."""

    number: int
    grammar: Grammar


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """From the trial process."""

    number: int
    refusal: str
    """Why the grammar is refused; "" if it compiles within the limits."""
    lasting: bool = True
    """Whether another trial would come to the same result."""


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """From the trial process, first: it has built the tokenizer."""

    failure: str
    """Why it could not, and ends; "" if it has."""


def write_message(file: BinaryIO, message: msgspec.Struct) -> None:
    packed = msgspec.msgpack.encode(message)
    file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + packed)
    file.flush()


def read_message(file: BinaryIO) -> bytes | None:
    """Return the next message; None at the end of the file, also in the middle of a message."""
    head = _read(file, _LENGTH_BYTES)
    return None if head is None else _read(file, int.from_bytes(head, "little"))


def _read(file: BinaryIO, length: int) -> bytes | None:
    """Also from an unbuffered pipe, which may return fewer bytes."""
    parts = bytearray()
    while len(parts) < length:
        part = file.read(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
