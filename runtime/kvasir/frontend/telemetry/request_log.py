"""The record of one HTTP request, and its line in the log."""

import logging
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol

from fastapi import Depends, Request

from kvasir.client.request_observer import Trace
from kvasir.frontend.answer_parts import Usage

log = logging.getLogger(__name__)

# characters of a client's text in the log: path, request id, field name
LONGEST_TEXT: Final = 200


class FollowedGeneration(Protocol):
    """The facts of a generation that log and traces read."""

    id: str
    n: int

    @property
    def traces(self) -> Sequence[Trace]: ...

    @property
    def usage(self) -> Usage: ...


class RequestRecord:
    """The fields of a log line. Times are those of time.perf_counter."""

    def __init__(self, request_id: str, method: str, path: str) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.started = time.perf_counter()
        self.status = 0
        """0 until the answer begins."""
        self.model = ""
        self.error = ""
        """The error message in the answer or stream."""
        self.client = ""
        """Address and port of a request that no route gets."""
        self.generation: FollowedGeneration | None = None

    def follow(self, model: str, generation: FollowedGeneration) -> None:
        self.model, self.generation = model, generation

    def write(self) -> None:
        fields = self.fields()
        log.info("%s", _sentence(fields), extra={"fields": fields})

    def fields(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": _one_line(self.path),
            "status": self.status,
            "e2e_seconds": round(time.perf_counter() - self.started, 6),
        }
        if self.model:
            result["model"] = self.model
        if self.generation is not None:
            result |= self._generated(self.generation)
        if self.error:
            result["error"] = _one_line(self.error)
        if self.client:
            result["client"] = self.client
        return result

    def _generated(self, generation: FollowedGeneration) -> dict[str, Any]:
        traces, usage = generation.traces, generation.usage
        result: dict[str, Any] = {
            "id": generation.id,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "output_tokens": sum(trace.output_tokens for trace in traces),
        }
        if first := [trace.first_token for trace in traces if trace.first_token is not None]:
            result["ttft_seconds"] = round(min(first) - self.started, 6)
        if engines := {trace.engine for trace in traces if trace.engine}:
            result["engine"] = ",".join(sorted(engines))
        if reasons := {trace.reason.value for trace in traces if trace.reason is not None}:
            result["finish_reason"] = ",".join(sorted(reasons))
        return result


def record_of(request: Request) -> RequestRecord:
    record = request.scope["state"]["record"]
    assert isinstance(record, RequestRecord)
    return record


RecordDep = Annotated[RequestRecord, Depends(record_of)]


def _sentence(fields: dict[str, Any]) -> str:
    """Return a line such as: GET /v1/models 200 in 0.002 s [request id]."""
    parts = []
    if "model" in fields:
        parts.append(fields["model"])
    if "prompt_tokens" in fields:
        cached = f" ({fields['cached_tokens']} cached)" if fields["cached_tokens"] else ""
        parts.append(f"{fields['prompt_tokens']}{cached} + {fields['output_tokens']} tokens")
    if "ttft_seconds" in fields:
        parts.append(f"first after {fields['ttft_seconds']:.3f} s")
    parts += [fields[name] for name in ("finish_reason", "engine", "error") if name in fields]
    if "client" in fields:
        parts.append(f"from {fields['client']}")
    head = f"{fields['method']} {fields['path']} {fields['status']} in {fields['e2e_seconds']:.3f} s"
    return f"{head}{': ' if parts else ''}{', '.join(parts)} [{fields['request_id']}]"


def _one_line(text: str) -> str:
    cut = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
