"""Resolves references within a schema: `#`, a JSON pointer or an anchor."""

from typing import Any
from urllib.parse import unquote

from kvasir.grammar_bounds.bad_grammar import bad_keyword


class References:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._anchors: dict[str, Any] | None = None
        self._targets: dict[str, Any] = {}

    def resolve(self, reference: str, path: str) -> Any:
        """Return the schema of a reference. Raises BadGrammar."""
        if reference not in self._targets:
            self._targets[reference] = self._resolve(reference, path)
        return self._targets[reference]

    def _resolve(self, reference: str, path: str) -> Any:
        if not reference.startswith("#"):
            raise bad_keyword(
                path, "$ref", f"refers to {reference!r}, and only references within the schema (#...) are supported"
            )
        fragment = unquote(reference[1:])
        try:
            if fragment and not fragment.startswith("/"):
                return self._anchored()[fragment]
            return _walk(self._root, fragment)
        except (KeyError, IndexError, ValueError, TypeError):
            raise bad_keyword(path, "$ref", f"refers to {reference!r}, which the schema does not have") from None

    def _anchored(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors = {}
            waiting = [self._root]
            while waiting:
                part = waiting.pop()
                if isinstance(part, dict) and isinstance(part.get("$anchor"), str):
                    self._anchors[part["$anchor"]] = part
                waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        return self._anchors


def _walk(value: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value
