"""`AsyncLLM`: a model in this process for asyncio programs that stream. A thread computes its steps."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

from kvasir.offline.llm_engine import LLMEngine
from kvasir.offline.lora_request import LoRARequest
from kvasir.offline.metric_values import Metric
from kvasir.offline.request_builder import Prompt
from kvasir.offline.request_output import RequestOutput
from kvasir.offline.sampling_params import SamplingParams

Result = TypeVar("Result")
_SHUT_DOWN: Final = "this AsyncLLM was shut down: create a new one"
_Item = RequestOutput | BaseException


class AsyncLLM:
    """One model. Its methods may be called on the event loops of several threads; `shutdown` it in the end."""

    def __init__(self, model: str, **engine_options: Any) -> None:
        # The arguments and errors are those of `LLM`.
        self._engine = LLMEngine(model, **engine_options)
        # None ends the thread.
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, Callable[[_Item], None]] = {}
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="AsyncLLM", daemon=True)
        self._thread.start()

    @classmethod
    def from_engine_args(cls, engine_args: Any, **_: Any) -> Self:
        # vLLM's further arguments have no effect.
        return cls(**vars(engine_args))

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: object = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the output of a prompt step by step, in the form of `sampling_params.output_kind`.

        Closing or cancelling the generator aborts the request. Raises ValueError for a bad prompt or parameters,
        RuntimeError after `shutdown`, and the error of a step.
        """
        loop, outputs = asyncio.get_running_loop(), asyncio.Queue[_Item]()

        def begin() -> None:
            self._engine.add_request(
                request_id,
                prompt,
                sampling_params,
                lora_request=lora_request,
                priority=priority,
                tokenization_kwargs=tokenization_kwargs,
            )
            self._streams[request_id] = lambda item: _call_soon(loop, outputs.put_nowait, item)

        await self._call(begin)
        finished = False
        try:
            while not finished:
                item = await outputs.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._work.put(lambda: self._abort([request_id]))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End these requests: their generators raise RuntimeError."""
        ids = [request_id] if isinstance(request_id, str) else [*request_id]
        await self._call(lambda: self._abort(ids))

    async def get_tokenizer(self) -> Any:
        return await asyncio.to_thread(self._engine.get_tokenizer)

    async def get_metrics(self) -> list[Metric]:
        """Return the metrics so far. Raises RuntimeError without `disable_log_stats=False`."""
        return await self._call(self._engine.get_metrics)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache. Return False if running requests use it."""
        return await self._call(self._engine.reset_prefix_cache)

    async def check_health(self) -> None:
        """Raise the error of a step that has failed, after which nothing can be computed."""
        if self._failure is not None:
            raise self._failure

    def shutdown(self) -> None:
        """End the running requests with a RuntimeError and free the model."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._work.put(None)
        self._thread.join()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # --------------------------------------------------------------------------------------------- in the thread

    def _loop(self) -> None:
        while True:
            try:
                work = self._work.get(block=not self._engine.has_unfinished_requests())
            except queue.Empty:
                self._step()
                continue
            if work is None:
                self._end_all(RuntimeError(_SHUT_DOWN))
                return
            work()

    def _step(self) -> None:
        try:
            outputs = self._engine.advance()
        except BaseException as error:
            self._end_all(error)
            return
        for request_id, output in outputs.items():
            is_last = isinstance(output, Exception) or output.finished
            if (send := self._streams.get(request_id)) is not None:
                send(output)
                if is_last:
                    del self._streams[request_id]

    def _abort(self, request_ids: list[str]) -> None:
        self._engine.abort_request(request_ids)
        for request_id in request_ids:
            if (send := self._streams.pop(request_id, None)) is not None:
                send(RuntimeError(f"the request {request_id} was aborted"))

    def _end_all(self, failure: BaseException) -> None:
        # Later calls get the error too.
        self._failure = failure
        self._engine.abort_request(list(self._streams))
        streams, self._streams = self._streams, {}
        for send in streams.values():
            send(failure)

    async def _call(self, do: Callable[[], Result]) -> Result:
        # Between two steps.
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()

        def work() -> None:
            try:
                if self._failure is not None:
                    raise self._failure
                done = do()
            except BaseException as error:
                _call_soon(loop, _set, result, None, error)
            else:
                _call_soon(loop, _set, result, done, None)

        with self._closing:  # nothing is queued behind the end
            if self._is_closed:
                raise RuntimeError(_SHUT_DOWN)
            self._work.put(work)
        return await result


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    if not loop.is_closed():  # the program may have ended it
        loop.call_soon_threadsafe(call, *args)


def _set(result: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if result.done():  # the caller was cancelled
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)
