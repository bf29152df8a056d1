"""Finds import cycles, also those through local imports and imports for the type checker."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath


def module_name(path: str) -> str:
    # For paths below a source root, such as runtime/kvasir/link/codec.py.
    parts = PurePath(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_in_cycles(parsed: Mapping[str, ast.Module]) -> list[str]:
    """Return the modules that import themselves through others, given the parsed sources by path."""
    names = {module_name(path): module for path, module in parsed.items()}
    imports = {name: set(_imported(module, names)) - {name} for name, module in names.items()}
    return sorted(name for name in imports if name in _reachable(name, imports))


def _imported(module: ast.Module, names: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                if below in names:
                    yield below
                elif node.module in names:
                    yield node.module


def _reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    found, waiting = set[str](), list(imports[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting.extend(imports[name])
    return found
