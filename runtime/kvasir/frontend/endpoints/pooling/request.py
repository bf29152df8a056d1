"""The bodies of the endpoints for vectors, scores and labels, in the forms of OpenAI, Jina, Cohere and vLLM."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field
from starlette.types import Scope

from kvasir.client.input.pooling_input import PoolingText, TextForm
from kvasir.frontend.endpoints.chat.messages import Messages, TemplateFields, template_messages
from kvasir.frontend.endpoints.completions.request import Prompt
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation.generation_request import header_rank
from kvasir.frontend.request_bodies.request_body import BodyPart, RequestBody

# OpenAI's limit.
MAX_INPUTS = 2048

Texts = Annotated[list[str], Field(fail_fast=True)]


class PoolingBody(RequestBody):
    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Use this many tokens of each input, the special ones included; -1: as many as the model takes."""
    truncation_side: Literal["left", "right"] = "right"
    """Leave tokens out at the beginning (left) or at the end of an input."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens to inputs that are texts."""
    prompt_name: str | None = None
    """Put the model's prompt of this name before each input (config_sentence_transformers.json)."""
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    data_parallel_rank: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    """Only engines of this rank compute it."""
    user: str | None = None
    """A label, without effect."""
    request_id: str | None = None
    """A label, without effect."""

    def take_rank(self, scope: Scope) -> None:
        self.data_parallel_rank = header_rank(scope, self.data_parallel_rank)

    def form(self, before: str) -> TextForm:
        keep = self.truncate_prompt_tokens
        if keep == 0:
            raise bad_field("truncate_prompt_tokens", "truncate_prompt_tokens is 0: keep at least 1 token")
        return TextForm(self.add_special_tokens, keep, self.truncation_side == "left", before)


class ScoredBody(BodyPart):
    """The fields of scores."""

    use_activation: bool | None = None
    """false: logits instead of scores."""
    activation: bool | None = None
    """An older name of use_activation."""
    softmax: bool | None = None
    """An older name of use_activation."""

    @property
    def activates(self) -> bool:
        return False not in (self.use_activation, self.activation, self.softmax)


class InputBody(PoolingBody, TemplateFields):
    """Either `input` or `messages`."""

    input: Prompt | None = None
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    messages: Messages | None = None
    """A conversation, which the chat template writes as one input."""
    add_generation_prompt: bool | None = False
    """End the conversation with the beginning of the assistant's answer."""

    def conversation(self) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
        """Return the messages and the template's variables; None for texts and tokens. Raises ApiError."""
        if (self.input is None) == (self.messages is None):
            raise bad_field("input", "give either input (texts or token ids) or messages (a conversation)")
        if self.messages is None:
            return None
        return template_messages(self.messages), self.template_variables()

    def inputs(self) -> list[PoolingText]:
        """Raises ApiError for an empty list."""
        given = [] if self.input is None else self.input
        if isinstance(given, str):
            return [given]  # an empty text has the special tokens of encoders
        if not given:
            raise bad_field("input", "input: the list is empty")
        if isinstance(given[0], int):
            return [cast(list[int], given)]
        return cast(list[PoolingText], given)


class EmbeddingRequest(InputBody):
    not_yet: ClassVar = {"mm_processor_kwargs": ({},)}

    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of a vector's numbers."""
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The form of the numbers in base64."""
    endianness: Literal["native", "little", "big"] = "native"
    """The order of the bytes in base64; native is little."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Cut vectors to their first numbers, if the model was trained for that."""
    normalize: bool | None = None
    """Scale vectors to length 1; the default is that of the model's files."""
    use_activation: bool | None = None
    """Another name of normalize."""


class PoolingRequest(EmbeddingRequest, ScoredBody):
    task: Literal["embed", "classify", "token_classify"] | None = None
    """It must be what the model is served for."""


class ClassifyRequest(InputBody, ScoredBody):
    """The answer has the logits in the place of probabilities, if use_activation is false."""


class DocumentPart(BodyPart):
    text: str


class CohereEmbedRequest(RequestBody):
    not_yet: ClassVar = {"images": ([],), "inputs": ([],), "max_tokens": ()}

    model: str | None = None
    texts: Annotated[Texts, Field(min_length=1)]
    input_type: str | None = None
    """The name of a prompt of the model; search_query and search_document stand for query and document."""
    embedding_types: (
        Annotated[list[Literal["float", "base64", "binary", "ubinary"]], Field(min_length=1)] | None
    ) = None
    """The default is float. binary and ubinary: a bit for each number, 0 if it is below 0, in signed or unsigned
    bytes; int8 and uint8 need the range of each number in the model's vectors, and are not supported."""
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    """The end of a text that is too long that is left out; NONE: such a text is an error."""


class ScoreRequest(PoolingBody, ScoredBody):
    """Either text_1 and text_2, or queries and documents."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = None
    """Another name of text_1."""
    documents: str | Texts | None = None
    """Another name of text_2."""

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return both sides, of one length or with one text on the first. Raises ApiError."""
        first = self.text_1 if self.text_1 is not None else self.queries
        second = self.text_2 if self.text_2 is not None else self.documents
        if first is None or second is None:
            raise bad_field("text_1", "give text_1 and text_2 (texts or lists of them), or queries and documents")
        left, right = ([each] if isinstance(each, str) else each for each in (first, second))
        if not left or not right or len(left) not in (1, len(right)):
            raise bad_field(
                "text_1",
                f"text_1 has {len(left)} and text_2 {len(right)} texts: give one and any number, or equally many",
            )
        return left, right


class RerankRequest(PoolingBody, ScoredBody):
    not_yet: ClassVar = {"max_chunks_per_doc": (), "max_tokens_per_doc": (), "rank_fields": ()}

    query: str
    documents: Annotated[list[str | DocumentPart], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=0)] | None = None
    """How many of the best documents to return; 0 and null: all."""
    return_documents: bool | None = None
    """Repeat the documents in the answer; the default is yes, and no for /v2/rerank."""

    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


def check_count(name: str, items: Sequence[Any], most: int) -> None:
    """Raise ApiError for more items than a client may have in flight."""
    limit = min(most, MAX_INPUTS)
    if len(items) > limit:
        raise bad_field(name, f"{name}: {len(items)} items are too many, send at most {limit}")
