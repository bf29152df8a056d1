"""`kvasir.StructuredOutputsParams`: a constraint on an offline output, with vLLM's names."""

from typing import Any, Self

import msgspec
from pydantic import ValidationError

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.frontend.errors import ApiError
from kvasir.frontend.generation.structured_output import OutputFields, StructuredOutputs, grammar_source
from kvasir.frontend.request_bodies.field_errors import explain


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
