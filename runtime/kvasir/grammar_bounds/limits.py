"""Limits on grammars: they bound the time of the check itself, and a trial the time of the compilation."""

from typing import Final

MAX_SCHEMA_BYTES: Final = 256 << 10
# Of JSON. llguidance's parser stops at 128.
MAX_NESTED_LEVELS: Final = 100
MAX_PROPERTIES: Final = 5_000  # of a whole schema
MAX_ENUM_VALUES: Final = 10_000
MAX_ENUM_CHARACTERS: Final = 200_000  # of one enum
# Of minItems, minLength and minProperties: a longer output fits into no context.
MAX_LEAST_COUNT: Final = 100_000
MAX_GREATEST_COUNT: Final = 2**31  # of maxItems, maxLength and maxProperties
MAX_REFERENCES: Final = 5_000
MAX_BRANCHES: Final = 1_000  # of one anyOf or oneOf
# Of the branches that an allOf combines: each combination is compiled.
MAX_BRANCH_PRODUCT: Final = 1_000
MAX_PATTERN_PROPERTIES: Final = 50  # of one object: pairs are compared
MAX_PATTERN_CHARACTERS: Final = 5_000
# Of nested counts.
MAX_REPETITION_PRODUCT: Final = 100_000
MAX_NESTED_GROUPS: Final = 50
MAX_REGEX_CHARACTERS: Final = 20_000  # of a whole output
MAX_GRAMMAR_BYTES: Final = 64 << 10  # without the schemas inside
MAX_GRAMMAR_SCHEMAS: Final = 256
MAX_GRAMMAR_SCHEMAS_BYTES: Final = 512 << 10  # of all schemas in a grammar
MAX_WHITESPACE_CHARACTERS: Final = 100
# Larger integers are not exact in the 64-bit floats of validators and llguidance.
MAX_EXACT_INTEGER: Final = 2**53
