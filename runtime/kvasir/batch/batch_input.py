"""Read the input of a batch: a JSON object per line, in the format of OpenAI's batch API.

The file is read twice: `survey` finds bad lines before anything is sent, `requests` yields the others.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

Decoded = TypeVar("Decoded")

# Servers accept bodies of 32 MiB by default.
MAX_LINE_BYTES: Final = 64 * 2**20
MAX_ID_CHARACTERS: Final = 512


class BadLine(ValueError):
    pass


class BatchRequest(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    stream: Any = None
    model: Any = None


@dataclass
class Survey:
    requests: int = 0
    answered: int = 0
    bad_lines: set[int] = field(default_factory=set)
    # Hashes of ids.
    failed: set[int] = field(default_factory=set)


_line_decoder = msgspec.json.Decoder(BatchRequest)
_body_decoder = msgspec.json.Decoder(_Body)


def id_hash(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def parse_line(line: bytes, served: Sequence[str] = ()) -> BatchRequest:
    """Parse a request. Raises BadLine. `served`: names of the model, if known."""
    request = _decoded(_line_decoder, line, "")
    body = _decoded(_body_decoder, request.body, "body: ")
    if not 0 < len(request.custom_id) <= MAX_ID_CHARACTERS:
        raise BadLine(f"custom_id has {len(request.custom_id)} characters: give 1 to {MAX_ID_CHARACTERS}")
    if request.method != "POST":
        raise BadLine(f"method is {request.method[:20]!r}: only POST can be in a batch")
    if not request.url.startswith("/") or not request.url.isascii() or not request.url.isprintable():
        raise BadLine(f"url is {request.url[:80]!r}: give a path of the API, such as /v1/chat/completions")
    if body.stream:
        raise BadLine("body.stream is set: an answer in a batch is whole, leave stream out")
    if served and isinstance(body.model, str) and body.model not in served:
        raise BadLine(
            f"body.model is {body.model[:80]!r}, and this command serves {' and '.join(map(repr, served))}: leave "
            f"model out, or add --served-model-name {shlex.quote(body.model[:80])}"
        )
    return request


def _decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw, place: str) -> Decoded:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise BadLine(place + str(error).replace("`", "").lower()) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"{place}not JSON: {error}") from None


def survey(
    path: Path,
    answered: Collection[int],
    report: Callable[[int, str], None],
    *,
    failed: Collection[int] = (),
    served: Sequence[str] = (),
) -> Survey:
    """Report the bad lines of the file. Raises OSError.

    `answered`, `failed`: hashes of the ids with an answer and with an error status.
    """
    result, seen = Survey(), set[int]()
    for number, line in _lines(path):
        try:
            key = id_hash(_checked(line, served).custom_id)
            if key in seen:
                raise BadLine("an earlier line has the same custom_id: each needs its own")
        except BadLine as error:
            result.bad_lines.add(number)
            report(number, str(error))
            continue
        seen.add(key)
        result.requests += 1
        result.answered += key in answered
        if key in failed:
            result.failed.add(key)
    return result


def requests(path: Path, found: Survey, answered: Collection[int]) -> Iterator[tuple[int, BatchRequest]]:
    """Yield the unanswered requests with their line numbers."""
    for number, line in _lines(path):
        if number not in found.bad_lines and line is not None:
            request = parse_line(line)
            if id_hash(request.custom_id) not in answered:
                yield number, request


def _checked(line: bytes | None, served: Sequence[str]) -> BatchRequest:
    if line is None:
        raise BadLine(f"longer than {MAX_LINE_BYTES // 2**20} MiB")
    return parse_line(line, served)


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    # skips blank lines; None stands for a line that is too long
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
            if not whole:
                while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            elif line.strip():
                yield number, line
