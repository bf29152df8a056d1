"""Choose the files of one model among the names of a repository or a directory of GGUF files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from kvasir.hub.hub_errors import HubError, ModelNotFound

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_QUANTISATION: Final = re.compile(r"(?i)(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|B?F16|F32|MXFP4\w*))$")
# of other programs, or of a vision tower
_OTHER: Final = re.compile(r"(?i)(^|[-._])(mmproj|imatrix)([-._]|$)")


@dataclass(frozen=True)
class GGUFFiles:
    """The files of one model."""

    stem: str  # with the folder; without the number of the part
    files: tuple[str, ...]
    missing: int

    @property
    def label(self) -> str:
        """Return what a user writes after the colon."""
        path = PurePosixPath(self.stem)
        found = _QUANTISATION.search(path.name) or _QUANTISATION.search(path.parent.name)
        return found[1] if found else f"{path.name}.gguf"

    def is_called(self, name: str) -> bool:
        path, wanted = PurePosixPath(self.stem.lower()), name.lower().removesuffix(".gguf")
        if path.name == wanted or path.parent.name == wanted:
            return True
        return path.name.endswith(tuple(f"{sign}{wanted}" for sign in "-._"))


def choose_files(names: Sequence[str], wanted: str | None, where: str) -> list[str]:
    """Return the model's file, or its parts in order. `wanted`: a quantisation or a name; None: the only model.

    Raises ModelNotFound with the models that are there, and HubError if a part is missing.
    """
    models = models_of(names)
    found = models if wanted is None else [model for model in models if model.is_called(wanted)]
    exact = [model for model in found if wanted is not None and model.label.lower() == wanted.lower()]
    if len(found) > 1 and len(exact) == 1:
        found = exact
    if len(found) != 1:
        raise _not_one(models, found, wanted, where)
    if found[0].missing:
        raise HubError(f"{where} lacks {found[0].missing} of the parts of {found[0].stem}: download it again")
    return list(found[0].files)


def parts_of(name: str, names: Sequence[str]) -> list[str]:
    """Return a file with the other parts of its model, in order."""
    stem = _stem(name)
    return sorted(other for other in names if _stem(other) == stem) or [name]


def models_of(names: Sequence[str]) -> list[GGUFFiles]:
    files: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix.lower() == ".gguf" and not _OTHER.search(path.stem):
            files.setdefault(_stem(name), []).append(name)
    return [GGUFFiles(stem, tuple(parts), _missing(parts)) for stem, parts in files.items()]


def _stem(name: str) -> str:
    stem = name[: -len(".gguf")]
    part = _PART.fullmatch(stem)
    return part[1] if part else stem


def _missing(parts: Sequence[str]) -> int:
    part = _PART.fullmatch(parts[0][: -len(".gguf")])
    return int(part[3]) - len(parts) if part else 0


def _not_one(models: Sequence[GGUFFiles], found: Sequence[GGUFFiles], wanted: str | None, where: str) -> HubError:
    if not models:
        return ModelNotFound(f"{where} has no GGUF file of a model")
    if wanted is None:
        labels = ", ".join(sorted({model.label for model in models}))
        return ModelNotFound(f"{where} has {len(models)} models in GGUF: choose one of {labels}")
    if not found:
        labels = ", ".join(sorted({model.label for model in models}))
        return ModelNotFound(f"{where} has no GGUF file {wanted}: choose one of {labels}")
    files = ", ".join(model.files[0] for model in found)
    return ModelNotFound(f"{where} has several GGUF files {wanted}: choose one by its name of {files}")
