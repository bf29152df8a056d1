"""Literals and numbers as models write them, as JSON."""

import ast
import json
import math
import re
from typing import Final

MAX_WORD_CHARACTERS: Final = 400

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PYTHON_NUMBER: Final = re.compile(r"[-+]?[0-9.][\w.+-]*")
_LARGEST: Final = "1.7976931348623157e308"
_WORDS: Final = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
    "undefined": "null", "NaN": "null", "Infinity": "null", "-Infinity": "null",
}  # fmt: skip


def json_word(word: str) -> str | None:
    """Return a literal or number of JSON or Python as JSON; None for another word.

    >>> [json_word(word) for word in ("None", "1.", "1e999", "01")]
    ['null', '1.0', '1.7976931348623157e308', None]
    """
    if word in _WORDS:
        return _WORDS[word]
    if len(word) > MAX_WORD_CHARACTERS:
        return None
    number: object = None
    if _NUMBER.fullmatch(word):
        if math.isfinite(float(word)):
            return word
        number = float(word)
    elif _PYTHON_NUMBER.fullmatch(word):
        try:
            number = ast.literal_eval(word)
        except (ValueError, SyntaxError):
            return None
    if isinstance(number, float) and math.isinf(number):
        return _LARGEST if number > 0 else f"-{_LARGEST}"
    return json.dumps(number) if isinstance(number, int | float) else None
