"""Writes the list of vLLM's options from the sources of its releases, and the table of what each becomes here.

    pip download --no-deps --only-binary :all: vllm==VERSION      # once for each version
    python -m tools.vllm_options list vllm-*.whl                  # writes runtime/kvasir/config/vllm/options.json
    python -m tools.vllm_options table                            # writes docs/vllm-options.md

The list holds facts only: name, short names, the values an option takes, and the releases that have it. vLLM is
read and not imported: its parser is built from add_argument calls, whose values come from annotated fields of
configs (`**scheduler_kwargs["policy"]` is the field `policy` of the class that `scheduler_kwargs` was made from),
and from every annotated field of the frontend's classes.
"""

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.vllm_table import page

ROOT: Final = Path(__file__).parent.parent
LIST: Final = ROOT / "runtime/kvasir/config/vllm/options.json"
TABLE: Final = ROOT / "docs/vllm-options.md"

# Class of a config → its fields → their annotations.
Fields = dict[str, dict[str, str]]

_FRONTEND_CLASSES: Final = ("BaseFrontendArgs", "FrontendArgs")
# Lists that vLLM reads from one word, as JSON or with commas.
_ONE_VALUE: Final = ("allowed_origins", "allowed_methods", "allowed_headers", "disable_access_log_for_endpoints")
# Lists with one option for each value.
_REPEATED: Final = ("middleware",)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.vllm_options", description=__doc__)
    parser.add_argument("what", choices=("list", "table"))
    parser.add_argument("wheel", nargs="*", type=Path)
    args = parser.parse_args(argv)
    if args.what == "table":
        TABLE.write_text(page())
        return
    LIST.write_text(as_json(merged({_version(wheel): options_of(wheel) for wheel in args.wheel})))


def merged(releases: dict[str, dict[str, dict[str, object]]]) -> dict[str, dict[str, object]]:
    """Return all options of the releases, as the newest release of each describes it."""
    versions = sorted(releases, key=lambda version: [int(part) for part in version.split(".")])
    result: dict[str, dict[str, object]] = {}
    for version in versions:
        for name, facts in releases[version].items():
            first = result.get(name, {}).get("first", version)
            result[name] = {**facts, "first": first, "last": version}
    return dict(sorted(result.items()))


def options_of(wheel: Path) -> dict[str, dict[str, object]]:
    # A wheel of one release.
    sources = _sources(wheel)
    fields = {
        node.name: _annotations(node)
        for source in sources.values()
        for node in ast.walk(source)
        if isinstance(node, ast.ClassDef)
    }
    found: dict[str, dict[str, object]] = {}
    for path, source in sources.items():
        if path == "vllm/engine/arg_utils.py":
            found |= dict(_added(source, fields))
        elif path.endswith("/cli_args.py"):
            for function in ast.walk(source):
                if isinstance(function, ast.FunctionDef) and function.name == "make_arg_parser":
                    found |= dict(_added(function, fields))
    for kind in _FRONTEND_CLASSES:
        for field, annotation in fields.get(kind, {}).items():
            takes = "value" if field in _ONE_VALUE else takes_of(annotation)
            takes = "repeated" if field in _REPEATED else takes
            found["--" + field.replace("_", "-")] = {"short": [], "takes": takes}
    return found


def takes_of(annotation: str) -> str:
    # A switch is --x or --no-x; `optional` may have no value.
    if re.fullmatch(r"bool \| str \| None|str \| bool \| None", annotation):
        return "optional"
    if re.search(r"\bbool\b", re.sub(r"\b(dict|list|tuple|set)\[.*\]", "", annotation)):
        return "switch"
    return "values" if re.search(r"(^|\||\[) ?(list|tuple|set)\b", annotation) else "value"


def as_json(options: dict[str, dict[str, object]]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in options.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _sources(wheel: Path) -> dict[str, ast.Module]:
    wanted = re.compile(r"vllm/(config/\w+|engine/arg_utils|entrypoints/.*cli_args)\.py")
    with zipfile.ZipFile(wheel) as archive:
        return {name: ast.parse(archive.read(name)) for name in archive.namelist() if wanted.fullmatch(name)}


def _annotations(node: ast.ClassDef) -> dict[str, str]:
    return {
        line.target.id: ast.unparse(line.annotation)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def _added(tree: ast.AST, fields: Fields) -> Iterator[tuple[str, dict[str, object]]]:
    # All add_argument calls below this node.
    classes = _classes(tree)
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"):
            continue
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        long = [name for name in names if name.startswith("--")]
        if long:
            takes = _takes_of_call(call, classes, fields)
            for name in long:
                yield name, {"short": [other for other in names if other != name], "takes": takes}


def _classes(tree: ast.AST) -> dict[str, str]:
    # Variables `x = get_kwargs(SomeConfig)` and their class.
    return {
        node.targets[0].id: node.value.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "get_kwargs"
        and isinstance(node.value.args[0], ast.Name)
    }


def _takes_of_call(call: ast.Call, classes: dict[str, str], fields: Fields) -> str:
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if (action := given.get("action", "").strip("'")) in ("store_true", "store_false"):
        return "nothing"
    if action.endswith("BooleanOptionalAction"):
        return "switch"
    if (nargs := given.get("nargs", "")) in ("'+'", "'*'"):
        return "values"
    if nargs == "'?'":
        return "optional"
    if name := re.search(r"(\w+)\[['\"](\w+)['\"]\]", given.get(None, "")):
        return takes_of(fields.get(classes.get(name[1], ""), {}).get(name[2], "str"))
    return "value"


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


if __name__ == "__main__":
    main(sys.argv[1:])
