"""Limits on grammars. They bound the time of the check itself; the trial compilation bounds the rest."""

from typing import Final

MAX_SCHEMA_BYTES: Final = 256 << 10
MAX_NESTED_LEVELS: Final = 100
"""Of objects and arrays in the JSON of a schema; the parser of llguidance stops at 128."""
MAX_PROPERTIES: Final = 5_000
"""Of all objects of a schema together."""
MAX_ENUM_VALUES: Final = 10_000
MAX_ENUM_CHARACTERS: Final = 200_000
"""Of the texts of one enum."""
MAX_LEAST_COUNT: Final = 100_000
"""For minItems, minLength and minProperties: an output that is longer fits into no context."""
MAX_GREATEST_COUNT: Final = 2**31
"""For maxItems, maxLength and maxProperties."""
MAX_REFERENCES: Final = 5_000
MAX_BRANCHES: Final = 1_000
"""Of one anyOf or oneOf."""
MAX_BRANCH_PRODUCT: Final = 1_000
"""Of the numbers of branches of all anyOf and oneOf that one allOf joins: each combination is compiled."""
MAX_PATTERN_PROPERTIES: Final = 50
"""Of one object: each pair is checked for an overlap."""
MAX_PATTERN_CHARACTERS: Final = 5_000
MAX_REPETITION_PRODUCT: Final = 100_000
"""Of counted repetitions that are nested, in a regular expression or a grammar."""
MAX_NESTED_GROUPS: Final = 50
"""In a regular expression or a grammar."""
MAX_REGEX_CHARACTERS: Final = 20_000
"""Of a regular expression for the whole output."""
MAX_GRAMMAR_BYTES: Final = 64 << 10
"""Of a grammar in EBNF or Lark, without the schemas inside."""
MAX_GRAMMAR_SCHEMAS: Final = 256
"""Of a grammar in Lark."""
MAX_GRAMMAR_SCHEMAS_BYTES: Final = 512 << 10
"""Of all schemas of a grammar in Lark together."""
MAX_WHITESPACE_CHARACTERS: Final = 100
"""Of a whitespace pattern."""
MAX_EXACT_INTEGER: Final = 2**53
"""Up to here all integers are exact in the floating-point numbers that validators and llguidance use."""
