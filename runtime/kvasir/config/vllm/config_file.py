"""Read a file for --config: YAML, whose keys are names of options."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from kvasir.config.vllm.verdicts import MAPPED

_ENDINGS: Final = (".yaml", ".yml")


def words_of_file(path: str) -> list[str]:
    """Return the content as words of a command line. Raises ValueError.

    true is --x, false is --no-x, a list gives several values, a mapping is JSON, and null leaves the option out.
    """
    if not path.endswith(_ENDINGS):
        raise ValueError(f"--config {path}: give a YAML file whose name ends with .yaml or .yml")
    import yaml  # here: most commands read no file

    try:
        with open(path, encoding="utf-8") as file:
            loader = yaml.SafeLoader(file)
            node = loader.get_single_node()
            # Before the construction, which keeps the last of two equal keys and merges mappings.
            flags = [_flag(str(key.value)) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
            content = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return []
    if not isinstance(content, dict):
        raise ValueError(f"--config {path}: give names of options with their values, such as max-model-len: 4096")
    if twice := [flag for flag in flags if flags.count(flag) > 1]:
        raise ValueError(f"--config {path}: {twice[0]} is there twice: keep one of the lines")
    return [word for name, value in content.items() for word in _words(_flag(str(name)), value)]


def place_in_file(words: Sequence[str], message: str) -> str:
    """Return " (FILE, line 3)" if the first option that an error names is in the file of --config, else ""."""
    named = re.search(r"--[a-z][\w-]*", message)
    given = [word.partition("=")[0].replace("_", "-") for word in words]
    if named is None or "--config" not in given or named[0] in given:
        return ""
    at = given.index("--config")
    path = words[at].partition("=")[2] or " ".join(words[at + 1 : at + 2])
    for flag, line in _lines_of(path):
        if named[0] in (flag, MAPPED.get(flag), "--no-" + flag[2:]):
            return f" ({path}, line {line})"
    return ""


def _lines_of(path: str) -> list[tuple[str, int]]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            node = yaml.SafeLoader(file).get_single_node()
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return []
    keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    return [(_flag(str(key.value)), key.start_mark.line + 1) for key in keys]


def _flag(name: str) -> str:
    return "--" + name.lstrip("-").replace("_", "-")


def _words(flag: str, value: Any) -> list[str]:
    if value is None or value == []:
        return []
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag[2:]]
    if isinstance(value, list):
        return [flag, *(json.dumps(item) if isinstance(item, dict) else str(item) for item in value)]
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return [f"{flag}={text}"]
