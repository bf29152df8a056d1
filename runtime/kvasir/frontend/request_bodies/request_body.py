"""The base of all bodies: pydantic models that know which features Kvasir does not have.

A field of such a feature is accepted if its value does not request it, since clients send defaults. null counts as
absent. Other unknown fields are ignored and logged, as in vLLM; --strict-fields rejects them.
"""

import ast
import difflib
import inspect
import logging
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, to_json

from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.field_errors import explain
from kvasir.process.seldom_log import SeldomLog


def field_texts(owner: type) -> dict[str, str]:
    # read only for the document; pydantic's `use_attribute_docstrings` reads the source at each start
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:
        return {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


def at_most(count: int) -> BeforeValidator:
    """Reject a longer list or object. Other types pass."""

    # not in the schema: generators of bodies would try a longer list
    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"{len(value)} items are too many, send at most {count}")
        return value

    return BeforeValidator(check)


log = SeldomLog(logging.getLogger(__name__), every=3600.0)

# Every integer up to this number is a float of its own.
MAX_EXACT: Final = 2**53
# Characters of an unknown name that is compared with the known ones, which takes seconds for megabytes.
_LONGEST_TYPO: Final = 64

Body = TypeVar("Body", bound="RequestBody")


class BodyPart(BaseModel):
    """An object within a body."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the fields with the texts below them."""
        described = handler.resolve_ref_schema(handler(schema))
        properties = described.get("properties", {})
        for owner in cls.__mro__:
            texts = field_texts(owner) if issubclass(owner, BodyPart) else {}
            for name in texts.keys() & properties.keys():
                properties[name].setdefault("description", texts[name])
        return described


class RequestBody(BodyPart):
    """The whole body of a request."""

    not_yet: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of missing features → values that request nothing."""
    known: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.known = frozenset(cls.model_fields)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add null for optional fields, and the fields of missing features."""
        described = super().__get_pydantic_json_schema__(schema, handler)
        properties, required = described.setdefault("properties", {}), described.get("required", ())
        for name, field in properties.items():
            if name not in required:
                properties[name] = _or_null(field)
        for name, harmless in cls.not_yet.items():
            properties[name] = {"enum": [*harmless, None], "description": "Not supported yet: leave it out"}
        return described


def parse(model: type[Body], body: Mapping[str, Any], *, strict: bool = False) -> Body:
    """Return the body as its model. Raises ApiError 400 that names the field."""
    given = {name: value for name, value in body.items() if value is not None}
    for name in given.keys() - model.known:
        _check_unknown(model, name, given.pop(name), strict)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        if not _make_integers(given, error):
            raise explain(error, given) from None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise explain(error, given) from None


def _check_unknown(model: type[RequestBody], name: str, value: Any, strict: bool) -> None:
    if name in model.not_yet:
        harmless = model.not_yet[name]
        if not any(_same(value, each) for each in harmless):
            raise bad_field(name, f"{name} is not supported yet{_accepted(harmless)}")
    elif strict:
        raise bad_field(name, f"unknown field {name}{_suggestion(name, model.known)}")
    else:
        shown = name if len(name) <= _LONGEST_TYPO else name[:_LONGEST_TYPO] + "…"
        log.warning(f"a request has the unknown field {shown!r}, which is ignored (--strict-fields rejects it)")


def _make_integers(given: dict[str, Any], error: ValidationError) -> bool:
    # Some clients send numbers like 100.0.
    made = False
    for each in error.errors(include_url=False, include_context=False):
        value = each["input"]
        at_top = each["type"] == "int_type" and len(each["loc"]) == 1
        if at_top and isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT:
            given[str(each["loc"][0])] = int(value)
            made = True
    return made


def _same(value: Any, harmless: Any) -> bool:
    # In Python True equals 1.
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _accepted(harmless: tuple[Any, ...]) -> str:
    if not harmless:
        return ": leave it out"
    return f": leave it out (or send {' or '.join(to_json(value).decode() for value in harmless)})"


def _suggestion(name: str, known: frozenset[str]) -> str:
    if len(name) > _LONGEST_TYPO:
        return ""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}?" if close else ""


def _or_null(described: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if null in described.get("anyOf", ()):
        return described
    outside: dict[str, Any] = {
        key: described[key] for key in ("default", "description", "title") if key in described
    }
    if "anyOf" in described:
        return {**outside, "anyOf": [*described["anyOf"], null]}
    return {**outside, "anyOf": [{k: v for k, v in described.items() if k not in outside}, null]}
