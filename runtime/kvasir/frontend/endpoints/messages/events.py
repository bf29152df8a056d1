"""The events of a streamed message, in bytes."""

from typing import Any, Final

from msgspec.json import encode

from kvasir.client.async_llm import Delta
from kvasir.frontend.answer_parts import Usage
from kvasir.frontend.endpoints.messages.answer import MessageObject
from kvasir.frontend.endpoints.messages.answer_blocks import SIGNATURE, AnswerBlock, AnswerBlocks, BlockType
from kvasir.frontend.errors import ApiError, error_body
from kvasir.frontend.parsers.parsed import ParsedEvent

_DELTAS: Final[dict[BlockType, bytes]] = {
    "thinking": b'{"type":"thinking_delta","thinking":%b}',
    "text": b'{"type":"text_delta","text":%b}',
    "tool_use": b'{"type":"input_json_delta","partial_json":%b}',
}


class MessageEvents:
    def __init__(self, message: MessageObject, blocks: AnswerBlocks) -> None:
        self._message = message
        self._blocks = blocks
        self._open: AnswerBlock | None = None
        """The block whose end has not been written."""
        self.begun = False

    def opening(self, usage: Usage) -> bytes:
        self.begun = True
        return _event("message_start", message=self._message.begin(usage))

    def texts(self, events: list[ParsedEvent]) -> bytes:
        written = b""
        for event in events:
            block, text = self._blocks.take(event)
            if block is not self._open:
                written += self._end() + self._begin(block)
            if text:
                written += _delta(block, text)
        return written

    def closing(self, last: Delta, usage: Usage) -> bytes:
        begun = self._begin(self._blocks.at_least_one()) if self._open is None else b""
        return (
            begun
            + self._end()
            + _event("message_delta", delta=self._message.stop(last), usage=self._message.usage(usage))
            + _event("message_stop")
        )

    def _begin(self, block: AnswerBlock) -> bytes:
        self._open = block
        begun = _event("content_block_start", index=block.index, content_block=block.begin())
        return begun + _event("ping") if block.index == 0 else begun

    def _end(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        ended = _event("content_block_stop", index=block.index)
        if block.type != "thinking":
            return ended
        delta = {"type": "signature_delta", "signature": SIGNATURE}
        return _event("content_block_delta", index=block.index, delta=delta) + ended


def failure(error: ApiError, request_id: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % error_body(error, request_id)


def _delta(block: AnswerBlock, text: str) -> bytes:
    delta = _DELTAS[block.type] % encode(text)
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b}\n\n' % (
        block.index,
        delta,
    )


def _event(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), encode({"type": type, **fields}))
