"""The distribution's name on the package index, and how to install one of its extras."""

from typing import Final

DISTRIBUTION: Final = "kvasir-serve"


def install_extra(extra: str, *packages: str) -> str:
    """
    >>> install_extra("bench")
    "pip install 'kvasir-serve[bench]'"
    """
    return " ".join(("pip install", f"'{DISTRIBUTION}[{extra}]'", *packages))
