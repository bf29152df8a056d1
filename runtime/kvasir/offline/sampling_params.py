"""`kvasir.SamplingParams`: parameters of an offline request, with vLLM's names."""

import copy
from enum import Enum
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.frontend.errors import ApiError
from kvasir.frontend.generation.structured_output import OutputFields, StructuredOutputs, grammar_source
from kvasir.frontend.request_bodies.field_errors import explain
from kvasir.request.params import MAX_TOKENS, TOP_LOGPROBS, SamplingFields


class StructuredOutputsParams(msgspec.Struct):
    """One constraint and options for JSON, as in the request field `structured_outputs`.

    Raises ValueError unless there is exactly one constraint.
    """

    json: dict[str, Any] | str | None = None
    """A JSON Schema: a dict, a text, or a pydantic model's class."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        if (schema_of := getattr(self.json, "model_json_schema", None)) is not None:
            self.json = schema_of()
        self.source()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Raises ValueError."""
        if unknown := sorted(fields.keys() - set(cls.__struct_fields__)):
            raise ValueError(
                f"structured_outputs has no field {unknown[0]}: give {', '.join(cls.__struct_fields__)}"
            )
        return cls(**fields)

    def source(self) -> GrammarSource:
        """Raises ValueError."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        try:
            source = grammar_source(OutputFields(structured_outputs=StructuredOutputs.model_validate(given)))
        except ApiError as error:
            raise ValueError(str(error)) from None
        except ValidationError as error:
            raise ValueError(f"structured_outputs.{explain(error, given)}") from None
        assert source is not None
        return source


MAX_CHOICES: Final = 128
_MAX_PRECISION: Final = "give at most 20; more, and -1 for the whole vocabulary, are not supported yet"


class RequestOutputKind(Enum):
    """The content of each output of a stream. `LLM` always returns FINAL_ONLY."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class _Fields(SamplingFields, kw_only=True):
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    """Outputs per prompt. Output i draws from seed + i."""
    max_tokens: Annotated[int, MAX_TOKENS.meta] | None = 16
    """None: up to the end of the context."""
    logprobs: Annotated[int, TOP_LOGPROBS.meta] | None = None
    """Report the log probability of each output token and of this many most likely ones."""
    structured_outputs: StructuredOutputsParams | None = None
    """A constraint, also as a dict. None: any text."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Keep only this many last tokens of the prompt; -1: leave room for the output."""
    # Without it, outputs have no text.
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt, and keep its KV blocks for no other request."""


_NOT_YET: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "extra_args": ((None, {}), "it is for plugins of vLLM"),
    "flat_logprobs": ((None, False), "log probabilities are a list of dicts"),
    "thinking_token_budget": ((None, -1), "requests to kvasir serve have it"),
    "guided_decoding": ((None,), "it is structured_outputs here"),
    "logits_processors": ((None, []), "functions that change logits are not supported yet"),
    "repetition_detection": ((None,), "the search for repetitions is not supported yet"),
    "best_of": ((None, 1), "it is n here"),
}
"""Missing parameters of vLLM: the accepted values, and the reason."""


class SamplingParams(_Fields, kw_only=True):
    """Sampling parameters. None: the model's generation_config.json decides.

    Raises TypeError for an unknown parameter, ValueError for a wrong type or range.
    """

    extra_args: Any = None
    flat_logprobs: Any = None
    thinking_token_budget: Any = None
    guided_decoding: Any = None
    logits_processors: Any = None
    repetition_detection: Any = None
    best_of: Any = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Normalise the fields. Raises ValueError."""
        for name, (neutral, reason) in _NOT_YET.items():
            if getattr(self, name) not in neutral:
                raise ValueError(f"{name} is not supported: {reason}; leave it out")
        for name in ("stop", "stop_token_ids", "bad_words"):
            if getattr(self, name) is None:
                setattr(self, name, [])
        for name in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(name)
        self.logit_bias = _by_decimal_number(self.logit_bias or {})
        if self.seed == -1:  # none, in vLLM
            self.seed = None
        if isinstance(self.structured_outputs, dict):
            self.structured_outputs = StructuredOutputsParams.of(self.structured_outputs)
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens is 0: keep at least 1 token")
        if not self.detokenize and self.stop:
            raise ValueError("stop needs the text of the output: leave out stop or detokenize=False")
        try:
            fields = {name: getattr(self, name) for name in _Fields.__struct_fields__}
            self.output_kind = msgspec.convert(msgspec.to_builtins(fields, enc_hook=repr), _Fields).output_kind
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at ")
            raise ValueError(f"{path.strip('`').removeprefix('$.')}: {problem}") from None

    def clone(self) -> Self:
        return copy.deepcopy(self)

    def _check_logprobs(self, name: str) -> None:
        asked = getattr(self, name)
        if asked is True or asked is False:
            setattr(self, name, 1 if asked else None)
        elif isinstance(asked, int) and (asked == -1 or asked > TOP_LOGPROBS.most):
            raise ValueError(f"{name} is {asked}: {_MAX_PRECISION}")


def _by_decimal_number(bias: dict[Any, float]) -> dict[str, float]:
    return {str(token_id): added for token_id, added in bias.items()}
