"""Translates structural tags (vLLM's and XGrammar's description of tagged text) to grammars in Lark.

The lexer reads free text as far as it can. So free text may stand only at the end of the output, or be the whole
content of a tag. Neighbouring regular expressions become one terminal, in which each ends where the next matches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kvasir.client.input.lark_literals import alternatives, literal, regex
from kvasir.client.input.tag_fields import (
    MAX_REPEAT,
    flag_of,
    is_count,
    list_of,
    object_of,
    refuse_unknown,
    text_of,
)

MAX_FORMATS: Final = 1_000  # including nested ones
MAX_DEPTH: Final = 16
MAX_TEXT_CHARACTERS: Final = 64 * 1024  # of all texts of a structural tag together

_ANY_TEXT: Final = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a rule's right side."""

    text: str
    terminal: bool = False  # a text or a regular expression: it may stand in a terminal
    endless: bool = False  # ends with free text, which would read what follows


def structural_tag_lark(tag: Mapping[str, Any], schema: Callable[[Any], str]) -> str:
    """Return the grammar of a tag. `schema`: returns a JSON Schema as text for %json.

    Raises ValueError with the path of a format that is not supported.
    """
    if tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError(f'type is {tag["type"]!r}: give "structural_tag"')
    if "structures" in tag:
        if "format" in tag:
            raise ValueError("give structures and triggers, or format, not both")
        tag = {"format": _of_structures(tag)}
    if "format" not in tag:
        raise ValueError("format is missing (or structures and triggers)")
    writer = _Writer(schema)
    part = writer.format(tag["format"], "format", 0)
    return writer.grammar(part)


def _of_structures(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the older form to triggered_tags."""
    structures = list_of(tag, "structures", "")
    tags = [
        {
            "type": "tag",
            "begin": text_of(each, "begin", f"structures[{index}]."),
            "content": {"type": "json_schema", "json_schema": object_of(each, "schema", f"structures[{index}].")},
            "end": text_of(each, "end", f"structures[{index}]."),
        }
        for index, each in enumerate(structures)
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


@dataclass
class _Writer:
    schema: Callable[[Any], str]
    _lines: list[str] = field(default_factory=list)
    _formats: int = 0
    _characters: int = 0

    def grammar(self, part: _Part) -> str:
        lines = [f"start: {self._named(part).text}", *self._lines]
        return "\n".join(lines) + "\n"

    def format(self, given: Any, path: str, depth: int) -> _Part:
        """Return one format. Raises ValueError."""
        self._formats += 1
        if self._formats > MAX_FORMATS:
            raise ValueError(f"more than {MAX_FORMATS} formats: give fewer")
        if depth > MAX_DEPTH:
            raise ValueError(f"{path}: formats are nested deeper than {MAX_DEPTH}")
        if not isinstance(given, Mapping):
            raise ValueError(f'{path} is not an object: give a format, for example {{"type": "any_text"}}')
        kind = given.get("type")
        if not isinstance(kind, str) or kind not in _FORMATS:
            raise ValueError(f"{path}.type: {kind!r} is not supported: give one of {', '.join(_FORMATS)}")
        refuse_unknown(given, kind, path)
        return _FORMATS[kind](self, given, f"{path}.", depth + 1)

    # ------------------------------------------------------------------------------------------ primitives

    def _const(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        return _Part(self._literal(text_of(given, "value", path)), terminal=True)

    def _json(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        if given.get("style", "json") != "json":
            raise ValueError(f'{path}style: {given["style"]!r} is not supported: give "json"')
        if given.get("any_order", False) is not False:
            raise ValueError(f"{path}any_order is not supported: leave it out")
        return _Part(f"%json {self.schema(object_of(given, 'json_schema', path))}")

    def _regex(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        return _Part(regex(self._counted(text_of(given, "pattern", path))), terminal=True)

    def _any_text(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        return _Part(_ANY_TEXT, terminal=True, endless=True)

    # ------------------------------------------------------------------------------------------ composition

    def _sequence(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        elements = self._elements(given, path, depth)
        return self._joined(elements, path)

    def _or(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        parts = self._elements(given, path, depth)
        terminal = all(part.terminal for part in parts)
        texts = (part.text if terminal else self._named(part).text for part in parts)
        return _Part(alternatives(texts), terminal, any(part.endless for part in parts))

    def _repeated(self, given: Mapping[str, Any], path: str, depth: int, sign: str) -> _Part:
        part = self.format(given.get("content"), f"{path}content", depth)
        if part.endless and not part.terminal and sign != "?":
            raise _endless(path)
        return _Part(f"({part.text}){sign}", part.terminal, part.endless)

    def _repeat(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        least, most = given.get("min", -1), given.get("max", -2)
        if not is_count(least) or not (most == -1 or is_count(most)) or -1 < most < least:
            raise ValueError(
                f"{path}min and {path}max: give two integers from 0 to {MAX_REPEAT} with min <= max; "
                "max may be -1 for no limit"
            )
        return self._repeated(given, path, depth, f"{{{least},{'' if most == -1 else most}}}")

    # ------------------------------------------------------------------------------------------ tags

    def _tag(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        return self._tag_after("", given, path, depth)

    def _tag_after(self, trigger: str, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        """Return the part of a tag after `trigger`, the start of its `begin`."""
        begin, ends = text_of(given, "begin", path).removeprefix(trigger), self._ends(given, path)
        opening = _Part(self._literal(begin), terminal=True)
        content = given.get("content")
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            self.format(content, f"{path}content", depth)  # checks it
            lazy = self._rule(f"{_ANY_TEXT} {ends}", lazy=True)
            return _Part(f"{opening.text} {lazy}")
        inner = self.format(content, f"{path}content", depth)
        return self._joined([opening, inner, _Part(ends, terminal=True)], path)

    def _ends(self, given: Mapping[str, Any], path: str) -> str:
        end = given.get("end")
        if isinstance(end, str):
            return self._literal(end)
        if isinstance(end, Sequence) and end and all(isinstance(each, str) for each in end):
            return alternatives(map(self._literal, end))
        raise ValueError(f"{path}end: give a text or a list of texts")

    def _triggered(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        triggers = list_of(given, "triggers", path)
        if not triggers or not all(isinstance(each, str) and each for each in triggers):
            raise ValueError(f"{path}triggers: give a list of texts that are not empty")
        by_trigger: dict[str, list[str]] = {}
        for where, tag in self._tags(given, path):
            trigger = _trigger_of(text_of(tag, "begin", where), triggers, where)
            by_trigger.setdefault(trigger, []).append(
                self._named(self._tag_after(trigger, tag, where, depth + 1)).text
            )
        first = alternatives(
            f"{self._literal(trigger)} {alternatives(tags)}" for trigger, tags in by_trigger.items()
        )
        later = alternatives(
            f"{self._rule(f'{_ANY_TEXT} {self._literal(trigger)}', lazy=True)} {alternatives(tags)}"
            for trigger, tags in by_trigger.items()
        )
        at_least_one, once = flag_of(given, "at_least_one", path), flag_of(given, "stop_after_first", path)
        text = self._rule(_ANY_TEXT)
        if at_least_one:
            return _Part(first) if once else _Part(f"{first} {later}* {text}", endless=True)
        return _Part(f"({later} | {text})" if once else f"{later}* {text}", endless=True)

    def _separated(self, given: Mapping[str, Any], path: str, depth: int) -> _Part:
        separator = self._literal(text_of(given, "separator", path))
        tag = alternatives(
            self._named(self._tag_after("", tag, where, depth + 1)).text for where, tag in self._tags(given, path)
        )
        once = flag_of(given, "stop_after_first", path)
        tags = tag if once else f"({tag} ({separator} {tag})*)"
        return _Part(tags if flag_of(given, "at_least_one", path) else f"({tags})?")

    def _tags(self, given: Mapping[str, Any], path: str) -> list[tuple[str, Mapping[str, Any]]]:
        tags = list_of(given, "tags", path)
        if not tags:
            raise ValueError(f"{path}tags is empty: give at least one tag")
        for index, tag in enumerate(tags):
            if not isinstance(tag, Mapping) or tag.get("type", "tag") != "tag":
                raise ValueError(f"{path}tags[{index}] is not a tag")
            refuse_unknown(tag, "tag", f"{path}tags[{index}]")
        return [(f"{path}tags[{index}].", tag) for index, tag in enumerate(tags)]

    # ------------------------------------------------------------------------------------------ rules

    def _elements(self, given: Mapping[str, Any], path: str, depth: int) -> list[_Part]:
        elements = list_of(given, "elements", path)
        if not elements:
            raise ValueError(f"{path}elements is empty: give at least one format")
        return [self.format(each, f"{path}elements[{index}]", depth) for index, each in enumerate(elements)]

    def _joined(self, parts: Sequence[_Part], path: str) -> _Part:
        """Return the sequence of the parts. Neighbouring terminals become one."""
        runs: list[_Part] = []
        for part in parts:
            if runs and runs[-1].terminal and part.terminal:
                runs[-1] = _Part(f"{runs[-1].text} {part.text}", terminal=True, endless=part.endless)
            else:
                runs.append(part)
        if any(run.endless for run in runs[:-1]):
            raise _endless(path)
        if len(runs) == 1:
            return _Part(f"({runs[0].text})", runs[0].terminal, runs[0].endless)
        return _Part(f"({' '.join(self._named(run).text for run in runs)})", endless=runs[-1].endless)

    def _named(self, part: _Part) -> _Part:
        """Return a part for use in a rule: a terminal gets a name."""
        if not part.terminal:
            return part
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {part.text}")
        return _Part(name, endless=part.endless)

    def _rule(self, text: str, *, lazy: bool = False) -> str:
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}{'[lazy]' if lazy else ''}: {text}")
        return name

    def _literal(self, text: str) -> str:
        return literal(self._counted(text))

    def _counted(self, text: str) -> str:
        self._characters += len(text)
        if self._characters > MAX_TEXT_CHARACTERS:
            raise ValueError(f"its texts have more than {MAX_TEXT_CHARACTERS} characters: give fewer")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair: send complete characters") from None
        return text


_FORMATS: Final[Mapping[str, Callable[[_Writer, Mapping[str, Any], str, int], _Part]]] = {
    "const_string": _Writer._const,
    "json_schema": _Writer._json,
    "regex": _Writer._regex,
    "any_text": _Writer._any_text,
    "sequence": _Writer._sequence,
    "or": _Writer._or,
    "optional": partial(_Writer._repeated, sign="?"),
    "star": partial(_Writer._repeated, sign="*"),
    "plus": partial(_Writer._repeated, sign="+"),
    "repeat": _Writer._repeat,
    "tag": _Writer._tag,
    "triggered_tags": _Writer._triggered,
    "tags_with_separator": _Writer._separated,
}


def _trigger_of(begin: str, triggers: Sequence[str], path: str) -> str:
    found = [trigger for trigger in triggers if begin.startswith(trigger)]
    if len(found) != 1:
        raise ValueError(f"{path}begin: {begin!r} must begin with exactly one of the triggers, not {len(found)}")
    return found[0]


def _endless(path: str) -> ValueError:
    return ValueError(
        f"{path.removesuffix('.')}: any_text and triggered_tags may stand only at the end of the output, and "
        "any_text as the content of a tag"
    )
