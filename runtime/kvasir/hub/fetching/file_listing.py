"""The files of a model at their origin, with their sizes and hashes."""

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol


class Hash(Protocol):
    def update(self, content: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class ListedFile:
    name: str  # relative, with / between folders
    size: int  # bytes
    digest: str  # what `new_hash` yields for the content; "" if the origin has none
    new_hash: Callable[[], Hash]
    read: Callable[[int], Generator[bytes]]  # from an offset; raises HubError
    tag: str = ""  # changes with the content, if there is no digest

    @property
    def key(self) -> str:
        # distinguishes contents of one name
        return hashlib.sha256(f"{self.name} {self.size} {self.digest or self.tag}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class FileListing:
    source: str  # as normalised
    revision: str  # of the origin when it was listed; "" if it has none
    files: tuple[ListedFile, ...]
    others: frozenset[str] = frozenset()  # names of the files at the origin that are not needed now

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)
