"""The input of /v1/responses as tokens, with `truncation: auto`."""

from typing import Any, Final

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.endpoints.output_plan import OutputPlan, plan_output
from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.generation.logprobs import check_size
from kvasir.frontend.service import Service
from kvasir.request.adapter import Adapter

_NAMES: Final = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of the other endpoints → here."""

Messages = list[dict[str, Any]]


async def prepare(
    service: Service, body: ResponsesRequest, rank: int | None, adapter: Adapter | None
) -> tuple[Prompted, OutputPlan]:
    """Raises ApiError, InvalidRequest with this endpoint's names, and TooManyRequests."""
    use, llm = body.tool_use(), service.llm
    messages = body.template_messages()
    tools = use.template_tools(hides_unused=service.hides_unused_tools)
    variables = {**body.template_variables(), "tools": tools}
    try:
        if body.truncation == "auto":
            room = llm.max_model_len - (body.max_output_tokens or 1)
            prompt = await _truncate(llm, messages, room, variables)
        else:
            prompt = await llm.input.render_chat(messages, **variables)
        plan = await plan_output(service, use, prompt, body.grammar_source())
        prompted = llm.input.prepare(
            prompt,
            body.sampling,
            max_tokens=body.max_output_tokens,
            logprobs=body.wanted_logprobs,
            data_parallel_rank=rank,
            adapter=adapter,
        )
        check_size(body, [prompted], 1, bounded=body.max_output_tokens is not None)
        return plan.apply(prompted), plan
    except InvalidRequest as error:
        message = str(error).replace("max_tokens", "max_output_tokens")
        raise InvalidRequest(message, _NAMES.get(error.param or "", error.param), error.code) from None


async def _truncate(llm: AsyncLLM, messages: Messages, room: int, variables: dict[str, Any]) -> list[int]:
    """Drop the oldest messages, as few as necessary, and return the tokens.

    An initial system message stays, and the rest begins with a user. Raises InvalidRequest if the last message
    alone is far too long.
    """
    kept = messages[:1] if messages[0]["role"] == "system" else []
    starts = [index for index in range(len(kept), len(messages)) if messages[index]["role"] == "user"]
    if not starts or starts[0] != len(kept):
        starts.insert(0, len(kept))
    low, high, middle = 0, len(starts), 0  # most conversations fit as they are
    fitting = None
    while low < high:
        prompt = await _render(llm, kept + messages[starts[middle] :], variables)
        if prompt is not None and len(prompt) <= room:
            fitting, high = prompt, middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    return fitting or await llm.input.render_chat(kept + messages[starts[-1] :], **variables)


async def _render(llm: AsyncLLM, messages: Messages, variables: dict[str, Any]) -> list[int] | None:
    """Return None for far more tokens than the context."""
    try:
        return await llm.input.render_chat(messages, **variables)
    except InvalidRequest as error:
        if error.code != "context_length_exceeded":
            raise
        return None
