"""The answers of chats without a parser: the message of each choice, and the chunks of a stream."""

from collections.abc import Sequence
from typing import Any

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.generation import Choice, Generation
from kvasir.frontend.generation.sse import Chunks
from kvasir.frontend.service import Service


class AnswerWriter:
    """Writes choices as one request asks for them."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.echo = body.echoed
        """Text before the content."""
        self._token_ids = body.return_token_ids
        self._top = body.wanted_logprobs
        self._prompt_top = body.sampling.prompt_logprobs
        self._names = logprobs.TokenNames(service.llm.detokenizer, body.return_tokens_as_token_ids)
        self._fingerprint = service.fingerprint
        self.continuous_usage = body.continuous_usage

    def opening(self, index: int, generation: Generation, chunks: Chunks, usage: dict[str, Any] | None) -> bytes:
        """The chunk before the first text, with the role; and one with the echoed message."""
        begun = self._role(index, generation, chunks, usage)
        if not self.echo:
            return begun
        delta = {"content": self.echo}
        return begun + chunks.choice(
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, usage
        )

    def _role(self, index: int, generation: Generation, chunks: Chunks, usage: dict[str, Any] | None) -> bytes:
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._token_ids:
            prompt = generation.prompts[index].prompt_token_ids
            return chunks.choice_with(choice, usage, prompt_token_ids=prompt.tolist())
        return chunks.choice(choice, usage)

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": None if self._top is None else self._logprobs(delta, self._top),
            "finish_reason": delta.finish_reason,
        }
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def answer(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer after its head."""
        answer: dict[str, Any] = {
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
            "system_fingerprint": self._fingerprint,
            "kv_transfer_params": None,
        }
        prompt, scores = choices[0].prompted.prompt_token_ids, choices[0].prompt_logprobs
        if self._token_ids:
            answer["prompt_token_ids"] = prompt.tolist()
        if self._prompt_top is not None and scores is not None:
            answer["prompt_logprobs"] = logprobs.of_prompt(self._names, prompt, scores, self._prompt_top)
        return answer

    def entries(self, choices: Sequence[Choice]) -> int:
        """Log probabilities that an answer with them holds."""
        of_output = 0 if self._top is None else (self._top + 1) * sum(len(choice.token_ids) for choice in choices)
        prompt = choices[0].prompted.prompt_token_ids
        return of_output + (0 if self._prompt_top is None else (self._prompt_top + 1) * len(prompt))

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        result: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": self.echo + choice.text, "refusal": None},
            "logprobs": None if self._top is None else self._logprobs(choice, self._top),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._token_ids:
            result["token_ids"] = choice.token_ids
        return result

    def _logprobs(self, tokens: Delta | Choice, top: int) -> dict[str, Any] | None:
        if tokens.logprobs is None:  # it has no tokens
            return None
        return logprobs.of_chat(self._names, tokens.token_ids, tokens.logprobs, top)
