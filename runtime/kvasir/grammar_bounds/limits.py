"""Limits on grammars: they bound the time of the check itself, and a trial the time of the compilation."""

from typing import Final

MAX_SCHEMA_BYTES: Final = 256 << 10
# Of JSON. llguidance's parser stops at 128.
MAX_NESTED_LEVELS: Final = 100
MAX_GRAMMAR_BYTES: Final = 64 << 10  # without the schemas inside
MAX_GRAMMAR_SCHEMAS: Final = 256
MAX_GRAMMAR_SCHEMAS_BYTES: Final = 512 << 10  # of all schemas in a grammar
MAX_WHITESPACE_CHARACTERS: Final = 100
# Larger integers are not exact in the 64-bit floats of validators and llguidance.
MAX_EXACT_INTEGER: Final = 2**53
