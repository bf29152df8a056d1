"""A pydantic model with the fields of the msgspec struct SamplingFields."""

import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Union

import msgspec
from pydantic import Field, create_model

from kvasir.frontend.request_bodies.request_body import RequestBody, field_texts
from kvasir.request.params import SamplingFields


def _definitions(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(struct, include_extras=True)
    texts = field_texts(struct)
    result = {}
    for field in msgspec.structs.fields(struct):
        about: dict[str, Any] = {"description": " ".join(texts.get(field.name, "").split()) or None}
        if field.default_factory is not msgspec.NODEFAULT:
            about["default_factory"] = field.default_factory
        else:
            about["default"] = field.default
        result[field.name] = (_hint(hints[field.name]), Field(**about))
    return result


def _hint(hint: Any) -> Any:
    """Return the type with pydantic's ranges in place of msgspec's."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        ranges = [_range(each) for each in args[1:] if isinstance(each, msgspec.Meta)]
        return Annotated[(_hint(args[0]), *ranges)]
    if origin is list:
        return Annotated[list[_hint(args[0])], Field(fail_fast=True)]  # type: ignore[misc]
    if origin is dict:
        return dict[args[0], _hint(args[1])]  # type: ignore[misc,valid-type]
    if origin in (types.UnionType, Union):
        return Union[tuple(_hint(each) for each in args)]  # noqa: UP007
    return hint


def _range(meta: msgspec.Meta) -> Any:
    names = ("ge", "gt", "le", "lt", "min_length", "max_length")
    return Field(**{name: value for name in names if (value := getattr(meta, name)) is not None})


if TYPE_CHECKING:

    class SamplingBody(RequestBody):
        """A body with the fields of SamplingFields."""
else:
    SamplingBody = create_model("SamplingBody", __base__=RequestBody, **_definitions(SamplingFields))
