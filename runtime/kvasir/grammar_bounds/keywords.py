"""The keywords of JSON Schema, drafts 3 to 2020-12, and how each is supported."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class SupportStatus(StrEnum):
    """Effect of a keyword in the engine."""

    ENFORCED = "enforced"
    LIMITED = "enforced, in the cases that the note names; refused by name in others"
    ANNOTATION = "allowed, and without effect on the output, as in the specification"
    REFUSED = "refused by name"


@dataclass(frozen=True)
class Support:
    """A row of the table of keywords in the docs."""

    status: SupportStatus
    note: str = ""


FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)

_LIMITED: Final = {
    "oneOf": "no two branches overlap: they differ in type, in a constant or in a required property",
    "allOf": "the branches can be merged; conditions on the same reference from two sides cannot",
    "$ref": 'within the schema: "#", "#/..." or "#anchor"',
    "$id": "at the root of the schema",
    "type": "the seven types of the specification",
    "format": ", ".join(sorted(FORMATS)),
    "pattern": "no lookaround, back reference or word boundary",
    "patternProperties": "no two patterns match the same name",
    "multipleOf": "a multiple of 1/1024: others have no exact floating-point number",
    "minProperties": "at most one more than the required properties: names of other properties may repeat",
    "maxProperties": "all named properties are required, or it is 0 or 1",
    "enum": "texts without control characters other than \\b, \\f, \\n, \\r and \\t; integers up to 2^53",
    "const": "as for enum",
    "uniqueItems": "false",
}
_ENFORCED: Final = (
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
)
_ANNOTATIONS: Final = (
    "$anchor",
    "$comment",
    "$defs",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "id",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
)
_REFUSED: Final = (
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "x-guidance",
)

# All keywords of the specifications. Others are annotations, and allowed.
KEYWORDS: Final[Mapping[str, Support]] = MappingProxyType(
    {
        **{keyword: Support(SupportStatus.ENFORCED) for keyword in _ENFORCED},
        **{keyword: Support(SupportStatus.LIMITED, note) for keyword, note in _LIMITED.items()},
        **{keyword: Support(SupportStatus.ANNOTATION) for keyword in _ANNOTATIONS},
        **{keyword: Support(SupportStatus.REFUSED) for keyword in _REFUSED},
    }
)
