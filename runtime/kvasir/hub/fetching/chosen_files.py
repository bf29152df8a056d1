"""Choose the files of a model that are read, among all names of a repository or bucket."""

from collections.abc import Sequence

from huggingface_hub.utils._paths import filter_repo_objects

from kvasir.hub.gguf.gguf_choice import choose_files
from kvasir.hub.hub_errors import ModelNotFound
from kvasir.hub.huggingface import IGNORED


def chosen_files(
    source: str,
    names: Sequence[str],
    described: Sequence[str],
    kinds: Sequence[Sequence[str]],
    *,
    weights: bool,
) -> list[str]:
    """Return the names that match `described`, and with `weights` those of the first of `kinds` that match any.

    A model in GGUF is in one file, with or without weights. Raises HubError.
    """
    kept = list(filter_repo_objects(names, ignore_patterns=IGNORED))
    found = [kind for kind in kinds if list(filter_repo_objects(kept, allow_patterns=list(kind)))]
    if found:
        return list(filter_repo_objects(kept, allow_patterns=[*described, *(found[0] if weights else ())]))
    if any(name.lower().endswith(".gguf") for name in kept):
        return choose_files(kept, None, source)
    there = ", ".join(names[:8]) or "no files"
    raise ModelNotFound(f"{source} has no weights in a format that is read: it has {there}")
