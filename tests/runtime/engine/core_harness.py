"""An engine core over the fake executor, with requests and the answers that frontends would hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvasir.engine.adapters.adapter_gate import AdapterGate
from kvasir.engine.core import EngineCore
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.admission_gates import AdmissionGate
from kvasir.engine.scheduling.rations import Ration, WholePrompts
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.step_drafts import Drafting
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.executor.executor import Executor
from kvasir.link.protocol import AddRequest, FinishReason, Outputs, RefusalKind, RequestProgress
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint
from kvasir.request.hashing import chain_root, packed_chain
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams
from kvasir.request.request_core import RequestKind
from kvasir.request.tokens import packed, token_array
from runtime.engine.fake_drafter import FakeDrafter
from runtime.engine.fake_executor import EOS, VOCAB_SIZE, FakeExecutor, next_token
from runtime.engine.kv_configs import kv_manager, no_kv_config
from runtime.engine.pooling_executor import PoolingExecutor
from runtime.link_messages import output_of


def add_request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 4,
    *,
    output: Sequence[int] = (),
    attempt: int = 0,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    priority: int = 0,
    cache_salt: str = "",
    age: float = 0.0,
    hashed_for: int | None = None,
    alone: bool = False,
    kv_source: str = "",
    constraint: OutputConstraint | None = None,
    min_tokens: int = 0,
    pooling: PoolParams | None = None,
    adapter: Adapter | None = None,
) -> AddRequest:
    """`hashed_for`: the block size that the frontend hashed the prompt for; None: it did not."""
    hashes = b""
    if hashed_for is not None:
        hashes = packed_chain(chain_root(cache_salt), token_array(prompt), hashed_for)
    return AddRequest(
        request_id=request_id,
        attempt=attempt,
        prompt_tokens=packed(prompt),
        output_tokens=packed(output),
        params=SamplingParams(
            max_tokens=max_tokens,
            seed=0,
            temperature=0,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            min_tokens=min_tokens,
        ),
        block_hashes=hashes,
        priority=priority,
        cache_salt=cache_salt,
        age=age,
        alone=alone,
        kv_source=kv_source,
        constraint=constraint,
        kind=RequestKind.GENERATE if pooling is None else RequestKind.POOL,
        pooling=pooling,
        adapter=adapter,
    )


FRONTEND = "frontend-a"


@dataclass
class Answer:
    """The outputs that a frontend has received for one request."""

    token_ids: list[int] = field(default_factory=list)
    attempt: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str = ""
    refusal: RefusalKind | None = None
    num_cached_tokens: list[int | None] = field(default_factory=list)
    """One per output."""
    queue_seconds: list[float | None] = field(default_factory=list)
    """As in each of its outputs."""
    prefill_seconds: list[float | None] = field(default_factory=list)
    decode_seconds: list[float | None] = field(default_factory=list)
    num_preemptions: int = 0
    pooled: bytes | None = None
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[list[float]] = field(default_factory=list)
    """One list per output that had any."""

    @property
    def num_outputs(self) -> int:
        return len(self.num_cached_tokens)


class CoreHarness:
    """A core over the fake executor, with the answers that frontends would hold; checks positions as they come."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 64,
        max_model_len: int | None = None,
        model: Callable[[Sequence[int]], int] = next_token,
        prefix_caching: bool = True,
        by_priority: bool = False,
        long_prefill_token_threshold: int | None = None,
        max_in_flight: int = 1,
        lookahead: int | None = None,
        gates: Sequence[AdmissionGate] = (),
        rations: Sequence[Ration] = (),
        max_queued_tokens: int = 2**26,
        windows: Sequence[int | None] = (None,),
        is_pipeline: bool = False,
        grammars: GrammarGate | None = None,
        pools: bool = False,
        max_step_rows: int = 0,
        adapters: Callable[[Executor], AdapterGate] | None = None,
    ) -> None:
        """`windows`: of each KV group; None: full attention. `grammars`: for requests with a constraint.
        `pools`: an engine of requests of kind POOL. `max_step_rows`: of steps with drafts; 0: none has any."""
        self.executor = (PoolingExecutor if pools else FakeExecutor)(
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            model=model,
            windows=windows,
            is_pipeline=is_pipeline,
        )
        self.drafter = FakeDrafter()
        self.adapters = None if adapters is None else adapters(self.executor)
        if self.adapters is not None:
            gates = [*gates, self.adapters]
        self.budget = TokenBudget(max_queued_tokens)
        blocks = kv_manager(num_blocks, block_size, windows, prefix_caching=prefix_caching, longest_chunk=budget)
        if pools:
            blocks = KVManager(no_kv_config(block_size), prefix_caching=False, longest_chunk=budget)
            rations = [WholePrompts(), *rations]
        max_model_len = max_model_len or min(blocks.longest_sequence, max(1000, num_blocks * block_size + 1))
        self.scheduler = Scheduler(
            blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=max_model_len,
            eos_token_ids=[EOS],
            by_priority=by_priority,
            long_prefill_token_threshold=long_prefill_token_threshold,
            budget=self.budget,
            lookahead=max_in_flight - 1 if lookahead is None else lookahead,
            gates=gates if grammars is None else [grammars, *gates],
            rations=rations,
            sends_sampled=is_pipeline,
            drafting=Drafting(self.drafter, max_step_rows),
        )
        self.blocks = blocks
        self.max_model_len = max_model_len
        ingest = Ingest(
            VOCAB_SIZE,
            max_model_len,
            self.blocks.cache_block_size,
            self.budget,
            grammars=grammars,
            kind=RequestKind.POOL if pools else RequestKind.GENERATE,
            takes_adapters=adapters is not None,
        )
        self.core = EngineCore(
            self.scheduler,
            self.executor,
            ingest,
            max_in_flight=max_in_flight,
            grammars=grammars,
            adapters=self.adapters,
        )
        self.answers: dict[str, Answer] = {}

    def add(self, message: AddRequest, frontend: str = FRONTEND) -> Answer:
        self.core.add(frontend, message)
        answer = self.answers[message.request_id] = Answer(output_of(message), message.attempt)
        return answer

    def step(self) -> None:
        self.take(self.core.step())

    def take(self, outputs: dict[str, Outputs]) -> None:
        for message in outputs.values():
            for output in message.outputs:
                answer = self.answers[output.request_id]
                assert answer.finish_reason is None, f"{output.request_id} got an output after its end"
                assert output.attempt == answer.attempt
                assert output.position == len(answer.token_ids)
                answer.token_ids += output.token_ids
                answer.pooled = output.pooled
                answer.finish_reason = output.finish_reason
                answer.stop_token_id = output.stop_token_id
                answer.error = output.error
                answer.refusal = output.refusal
                answer.num_cached_tokens.append(output.num_cached_tokens)
                answer.queue_seconds.append(output.queue_seconds)
                progress = output.progress or RequestProgress()
                answer.prefill_seconds.append(progress.prefill_seconds)
                answer.decode_seconds.append(progress.decode_seconds)
                answer.num_preemptions = max(answer.num_preemptions, progress.num_preemptions)
                answer.logprobs += output.logprobs.token if output.logprobs else []
                answer.prompt_logprobs += [output.prompt_logprobs.token] if output.prompt_logprobs else []

    def run_blocked(self) -> None:
        """Step until only blocked requests are left."""
        while self.core.has_work:
            self.step()

    def run(self, limit: int = 2000) -> None:
        """Step until there is nothing to do, then check that nothing is left."""
        for _ in range(limit):
            if not self.core.has_work:
                self.core.check_idle()
                assert not self.scheduler.requests
                assert not self.drafter.asked
                assert self.budget.held == 0
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")
