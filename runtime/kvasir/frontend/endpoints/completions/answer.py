"""The answers of /v1/completions: choices with echo, token ids and log probabilities."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kvasir.client.async_llm import Delta
from kvasir.client.input.prompted import Prompted
from kvasir.client.text.detokenizer import Detokenizer, TextStream
from kvasir.frontend.answer_parts import CompletionLogprobs, PromptLogprobs, Usage
from kvasir.frontend.endpoints.completions.request import CompletionRequest
from kvasir.frontend.generation.generation import Choice
from kvasir.frontend.generation.logprobs import CompletionLogprobsWriter, TokenNames, of_prompt

ReasonToFinish = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length"]})]


class CompletionChunkChoice(Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ReasonToFinish | None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ReasonToFinish | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    kv_transfer_params: None


class CompletionWriter:
    """Writes choices in the form that one request asks for. `echoes`: the text before each prompt's choices."""

    def __init__(self, detokenizer: Detokenizer, body: CompletionRequest, echoes: list[str]) -> None:
        self._detokenizer = detokenizer
        self._n = body.n
        self._echoes = echoes if body.echo else None
        self._token_ids = body.return_token_ids
        sampling = body.sampling
        self._text_form = (sampling.skip_special_tokens, sampling.spaces_between_special_tokens)
        self._prompt_top = sampling.prompt_logprobs
        self._names = TokenNames(detokenizer, body.return_tokens_as_token_ids)
        # By choice of a stream: its log probabilities depend on the tokens before.
        self._scored: dict[int, tuple[CompletionLogprobsWriter, TextStream]] = {}
        self._begun: set[int] = set()
        self.top = body.logprobs

    def delta(self, index: int, delta: Delta, prompted: Prompted) -> CompletionChunkChoice:
        choice = CompletionChunkChoice(index, delta.text, None, delta.finish_reason)
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        first = index not in self._begun
        if first:
            self._begun.add(index)
            if self._echoes is not None:
                choice.text = self._echoes[index // self._n] + delta.text
        if self._token_ids:
            choice.token_ids = delta.token_ids
            if first:
                choice.prompt_token_ids = prompted.prompt_token_ids.tolist()
        if self.top is not None:
            if first:
                self._scored[index] = self._new_scores(prompted)
            choice.logprobs = self._logprobs(index, delta, prompted, self._scored[index], with_prompt=first)
        return choice

    def choices(self, choices: list[Choice]) -> list[CompletionChoice]:
        return [self._choice(index, choice) for index, choice in enumerate(choices)]

    def entries(self, tokens: Choice | Delta) -> int:
        """Return the number of log probabilities of these tokens."""
        of_prompt = 0 if tokens.prompt_logprobs is None else len(tokens.prompt_logprobs.token)
        of_output = 0 if self.top is None else len(tokens.token_ids)
        return (of_prompt + of_output) * (max(self.top or 0, self._prompt_top or 0) + 1)

    def _choice(self, index: int, choice: Choice) -> CompletionChoice:
        prompted = choice.prompted
        text = choice.text if self._echoes is None else self._echoes[index // self._n] + choice.text
        result = CompletionChoice(index, text, None, choice.finish_reason, choice.stop_reason)
        if self._token_ids:
            result.token_ids = choice.token_ids
            result.prompt_token_ids = prompted.prompt_token_ids.tolist()
        if self._prompt_top is not None and choice.prompt_logprobs is not None:
            result.prompt_logprobs = of_prompt(
                self._names, prompted.prompt_token_ids, choice.prompt_logprobs, self._prompt_top
            )
        if self.top is not None:
            scores = self._new_scores(prompted)
            result.logprobs = self._logprobs(index, choice, prompted, scores, with_prompt=True)
        return result

    def _new_scores(self, prompted: Prompted) -> tuple[CompletionLogprobsWriter, TextStream]:
        assert self.top is not None
        stream = self._detokenizer.stream(prompted.prompt_token_ids, *self._text_form)
        return CompletionLogprobsWriter(self._names, self.top), stream

    def _logprobs(
        self,
        index: int,
        tokens: Choice | Delta,
        prompted: Prompted,
        scored: tuple[CompletionLogprobsWriter, TextStream],
        *,
        with_prompt: bool,
    ) -> CompletionLogprobs:
        scores, stream = scored
        of_echo = None
        if with_prompt and self._echoes is not None and tokens.prompt_logprobs is not None:
            of_echo = scores.of_prompt(
                prompted.prompt_token_ids,
                tokens.prompt_logprobs,
                self._detokenizer.stream((), *self._text_form),
                len(self._echoes[index // self._n]),
            )
        of_output = scores.of_output(tokens.token_ids, tokens.logprobs, stream)
        return of_output if of_echo is None else of_echo + of_output
