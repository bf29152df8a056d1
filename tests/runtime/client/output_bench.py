"""An output processor without a link: outputs go in by hand, and its requests are recorded."""

import asyncio
from collections.abc import Sequence

from kvasir.client.input.prompted import Prompted
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest
from kvasir.client.output_processor import AbortRequests, DistrustEngine, OutputProcessor, TryNextEngine
from kvasir.client.text.stop_strings import StopStrings
from kvasir.link.protocol import Logprobs, RequestOutput
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import token_array
from runtime.client.observers import RecordingObserver

ENGINE = "engine-0"
EOS = 2


class Numbers:
    """A text stream that spells the token ids."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)

    def finish(self) -> str:
        return "."


class Bench:
    """An output processor with its journal, driven as AsyncLLM does it; a distrusted engine loses its requests."""

    def __init__(self) -> None:
        self.journal = Journal(10_000)
        self.observer = RecordingObserver()
        self.distrusted: list[tuple[str, str]] = []
        self.aborts: list[tuple[str, list[str]]] = []
        self.outputs = OutputProcessor(self.journal, self.observer, (EOS,))
        self._planned = False

    @property
    def aborted(self) -> list[str]:
        return [request_id for _, request_ids in self.aborts for request_id in request_ids]

    def receive(self, engine: str, outputs: list[RequestOutput]) -> None:
        self.outputs.receive(engine, outputs)
        self._settle()

    def _work(self) -> None:
        self._planned = False
        self.outputs.work()
        self._settle()

    def _settle(self) -> None:
        if self.outputs.has_backlog and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._work)
        while self.outputs.actions:
            match self.outputs.actions.popleft():
                case AbortRequests(engine, request_ids):
                    self.aborts.append((engine, request_ids))
                case DistrustEngine(engine, reason):
                    self.distrusted.append((engine, reason))
                    self.lose(engine)
                case TryNextEngine(_, request, error, refusal):  # the bench has no other engine
                    self.outputs.fail(request, error, refusal)

    def lose(self, engine: str) -> None:
        self.outputs.flush(engine)
        for request in self.journal.of_engine(engine):
            self.outputs.fail(request, "lost")

    def add(
        self, request_id: str, stop: list[str] | None = None, *, include: bool = False, min_tokens: int = 0
    ) -> LiveRequest:
        stops = None if stop is None else StopStrings(stop)
        core = RequestCore(SamplingParams(max_tokens=100, seed=0, min_tokens=min_tokens))
        prompted = Prompted(token_array([1, 1]), core, stops, include)
        request = LiveRequest(request_id, prompted, Numbers())
        self.journal.add(request)
        self.journal.assign(request, ENGINE)
        return request


def output(request_id: str, position: int, *token_ids: int, attempt: int = 1, **more: object) -> RequestOutput:
    return RequestOutput(request_id, attempt, position, list(token_ids), **more)  # type: ignore[arg-type]


def scores(*token_ids: int) -> Logprobs:
    return Logprobs(
        [-float(i) for i in token_ids],
        [1 for _ in token_ids],
        [[i] for i in token_ids],
        [[-0.5] for _ in token_ids],
    )
