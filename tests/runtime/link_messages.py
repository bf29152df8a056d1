"""Read the fields of messages that travel as bytes."""

from kvasir.link.protocol import AddRequest
from kvasir.request.hashing import split_chain
from kvasir.request.tokens import from_wire


def prompt_of(request: AddRequest) -> list[int]:
    return from_wire(request.prompt_tokens).tolist()


def output_of(request: AddRequest) -> list[int]:
    """Return the token ids that earlier attempts have emitted."""
    return from_wire(request.output_tokens).tolist()


def hashes_of(request: AddRequest) -> list[bytes]:
    return split_chain(request.block_hashes)
