"""Gives a process what libraries expect: open standard streams, a home and a user name."""

import contextlib
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

DELETED: Final = "the working directory has been deleted: change to another one, and start the command again"


def complete_process() -> None:
    open_missing_streams()
    name_user(os.environ)


def directory_exists() -> bool:
    # MKL ends a process without a user name that imports torch
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def open_missing_streams() -> None:
    # A later socket or file would get the number of a closed stream, and the output of print.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def name_user(environ: MutableMapping[str, str]) -> None:
    """Set HOME and USER if neither the environment nor the user database has them."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ.setdefault("USER", str(os.getuid()))
        if not environ.get("HOME"):
            environ["HOME"] = str(_private_home())


def _private_home() -> Path:
    try:
        path = Path(tempfile.gettempdir(), f"kvasir-home-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return Path(tempfile.mkdtemp(prefix="kvasir-home-"))  # another user created it
        return path
    except OSError:
        return Path("/")
