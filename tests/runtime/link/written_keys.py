"""Directories of link keys, written from the operator's own keys as a mounted Secret's items are."""

from pathlib import Path

from kvasir_contract.environment import ENGINE_KEY_FILES, FRONTEND_KEY_FILES
from kvasir_operator.link_keys import new_link_keys


def write_link_keys(frontend: Path, engine: Path) -> None:
    """Fresh keys: the frontends' into the first directory, the engines' into the second."""
    keys = new_link_keys()
    for directory, names in ((frontend, FRONTEND_KEY_FILES), (engine, ENGINE_KEY_FILES)):
        directory.mkdir(exist_ok=True)
        for name in names:
            (directory / name).write_text(keys[name])
