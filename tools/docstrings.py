"""Measures docstrings and comments of Python sources: words per line of code, and first words.

Every bare string is a docstring. A line of code has a token outside of docstrings and comments.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

FRAGMENT = re.compile(r"(?:Of|By|The same|Those|These|Which|Whose|What)\b|As `")
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}


@dataclass(frozen=True)
class ProseOfCode:
    docstring_words: int = 0
    comment_words: int = 0
    code_lines: int = 0

    def __add__(self, other: "ProseOfCode") -> "ProseOfCode":
        return ProseOfCode(
            self.docstring_words + other.docstring_words,
            self.comment_words + other.comment_words,
            self.code_lines + other.code_lines,
        )

    @property
    def words_per_100_lines(self) -> float:
        return 100 * (self.docstring_words + self.comment_words) / max(self.code_lines, 1)

    @property
    def comment_share(self) -> float:
        # In percent of all words.
        return 100 * self.comment_words / max(self.docstring_words + self.comment_words, 1)


def docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    # With those of attributes.
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value


def fragments(module: ast.Module) -> list[int]:
    """Return the lines of the docstrings whose first words are not the beginning of a phrase."""
    of_module = ast.get_docstring(module) is not None  # it may name a question, such as "Which engines have room"
    below = (text for text in docstrings(module) if not (of_module and text is module.body[0].value))  # type: ignore[attr-defined]
    return [text.lineno for text in below if FRAGMENT.match(str(text.value).lstrip())]


def prose_of_code(text: str, module: ast.Module) -> ProseOfCode:
    # Raises tokenize.TokenError if the text is not Python.
    words, within = 0, set[int]()
    for docstring in docstrings(module):
        words += len(str(docstring.value).split())
        within.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    comments, code = 0, set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += len(token.string.lstrip("#").split())
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return ProseOfCode(words, comments, len(code - within))
