"""Find a model by hf://, file://, s3://, pvc:// or demo://, and put it on this machine.

A model in GGUF is named as a file, as the only one of a directory, or as hf://org/name:QUANTISATION.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from kvasir.hub.fetching.file_listing import FileListing
from kvasir.hub.fetching.filled_directory import fill
from kvasir.hub.gguf.gguf_choice import choose_files, models_of, parts_of
from kvasir.hub.gguf.gguf_model import local_directory
from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.made_once import cache_of
from kvasir.hub.other_formats import explain
from kvasir.hub.pooling.pooling_info import POOLING_FILES
from kvasir.hub.tokenizer_files import TOKENIZER_FILES
from kvasir.hub.weight_scheme import COMPANIONS
from kvasir.hub.weights import has_weights
from kvasir_contract.environment import MODEL_DIRECTORY

T = TypeVar("T")
CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
    "chat_template.json",
    *COMPANIONS,
)
_DESCRIBED = [*CONFIG_FILES, *POOLING_FILES, *TOKENIZER_FILES]
_SAFETENSORS = ["*.safetensors"]
_PICKLED = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
DEMO = "demo://"
_DEMO = Path(__file__).with_name("demo")
_ACCEPTED = (
    "hf://org/name[:QUANTISATION][@revision], org/name, name, s3://bucket/prefix, file:///path, a path, or demo://"
)
_MODEL = "the model's config.json and weights"
_SEGMENT = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?:{_SEGMENT}/)?{_SEGMENT}")
_QUANTISATION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_GGUF_PAGE = re.compile(r"([^/]+/[^/]+)/(?:blob|resolve)/[^/]+/(?:[^?]+/)?([^/?]+\.gguf)(?:\?.*)?")
_REVISION = re.compile(r"[A-Za-z0-9._/+-]+")  # a test compares the CRD's grammar
_BUCKET = re.compile(r"([a-z0-9][a-z0-9.-]*)(?:/(.*))?")
_CLAIM = re.compile(r"([a-z0-9][-a-z0-9.]*)(?:/(.*))?")


@dataclass(frozen=True)
class _Repository:
    name: str
    quantisation: str | None  # or the name of a GGUF file
    revision: str | None

    @property
    def is_gguf(self) -> bool:
        return self.quantisation is not None or "gguf" in self.name.lower()


def normalise(text: str) -> str:
    """Return the model as hf://org/name[@revision], file:///path, s3://bucket/prefix, pvc://claim/path or demo://.

    A path that exists wins over a repository of the same name. Raises HubError.
    """
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme == "hf":
            _repository(rest)
        elif scheme == "file":
            if not rest.startswith("/"):
                raise HubError(f"{text} has no absolute path: write it with three slashes, file:///path")
        elif scheme == "s3":
            _bucket(rest)
        elif scheme == "pvc":
            _on_claim(rest)
        elif scheme == "demo":
            if rest:
                raise HubError(f"{text}: there is one demo model, demo://, without a name")
        else:
            hint = _hint(text)
            raise HubError(
                hint or f"{text} is not a model source: the scheme {scheme}:// is unknown; give {_ACCEPTED}"
            )
        return text
    if not text:
        raise HubError(f"the model is an empty text: give {_ACCEPTED}")
    if text.startswith(("/", "./", "../", "~")) or os.path.exists(text):
        return f"file://{os.path.abspath(os.path.expanduser(text))}"
    if text.partition("@")[0].count("/") > 1:
        raise HubError(
            _hint(text) or f"{text} is neither a path that exists nor the name of a model: give {_ACCEPTED}"
        )
    _repository(text)
    return f"hf://{text}"


def fetch(
    source: str,
    *,
    weights: bool,
    download_dir: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    content: str = _MODEL,
) -> Path:
    """Return the local directory of a normalised source, downloaded if necessary.

    `weights`: fetch the files that only engines read too. `content`: required files, for messages. `progress` gets
    the bytes done and in all, in any thread; its exception ends the download and is raised here. Raises
    ModelNotFound, DownloadFailed, HubError.
    """
    scheme, _, rest = source.partition("://")
    if scheme == "demo":
        return _DEMO
    if scheme == "file":
        return _local(Path(rest), content)
    if scheme == "pvc":
        return _local(_on_claim(rest), content)
    if scheme == "s3":
        return _of_bucket(source, weights, download_dir, progress or (lambda *_: None))
    if scheme != "hf":
        raise HubError(f"{source} is not a model source: give {_ACCEPTED}")
    from kvasir.hub.huggingface import download, download_gguf

    repository = _repository(rest)
    name, revision = repository.name, repository.revision
    if repository.is_gguf:
        return download_gguf(name, repository.quantisation, revision, weights, download_dir, progress)
    path = download(name, revision, _DESCRIBED + _SAFETENSORS * weights, download_dir, progress)
    if weights and not has_weights(path):
        path = download(name, revision, _DESCRIBED + _PICKLED, download_dir, progress)
    return path


def list_files(source: str, *, weights: bool = True) -> FileListing:
    """Return the files of a normalised source that engines read, or only frontends. Raises HubError."""
    scheme, _, rest = source.partition("://")
    if scheme not in ("hf", "s3"):
        raise HubError(f"{source} is a directory already: only hf:// and s3:// are fetched into one")
    from kvasir.hub.fetching.chosen_files import chosen_files
    from kvasir.hub.fetching.hub_listing import list_repository

    def choose(names: Sequence[str]) -> list[str]:
        return chosen_files(source, names, _DESCRIBED, [_SAFETENSORS, _PICKLED], weights=weights)

    if scheme == "s3":
        from kvasir.hub.fetching.s3_listing import list_bucket  # an optional library

        return list_bucket(source, *_bucket(rest), choose)
    repository = _repository(rest)
    if repository.is_gguf:
        choose = partial(choose_files, wanted=repository.quantisation, where=source)
    return list_repository(source, repository.name, repository.revision, choose)


def _of_bucket(source: str, weights: bool, download_dir: str | None, progress: Callable[[int, int], None]) -> Path:
    listing = list_files(source, weights=weights)
    words = re.sub(r"[^A-Za-z0-9.]+", "-", source.partition("://")[2])[:64]
    name = f"{words}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    directory = Path(download_dir or cache_of(source), "s3", name)
    fill(directory, listing, progress)
    return _local(directory, _MODEL)


def fetch_files(source: str, names: list[str], content: str, download_dir: str | None = None) -> Path:
    """Return the local directory of a normalised source that is not a model, with these of its files.

    Raises as `fetch` does. `content`: what the files are, for messages.
    """
    scheme, _, rest = source.partition("://")
    if scheme == "file":
        return _readable(Path(rest), content)
    if scheme != "hf":
        raise HubError(f"{source} does not hold {content}: give hf://org/name[@revision] or a directory")
    from kvasir.hub.huggingface import download

    repository = _repository(rest)
    return download(repository.name, repository.revision, names, download_dir, None)


def read_file_of(source: str, commit: str, name: str, read: Callable[[BinaryIO, int], T]) -> T | None:
    """Return the result of `read`, which gets a file of the hub and its size, and may read parts; None without it.

    Raises as `fetch` does.
    """
    from kvasir.hub.huggingface import read_remote

    return read_remote(_repository(source.removeprefix("hf://")).name, commit, name, read)


def _repository(text: str) -> _Repository:
    rest, at, revision = text.partition("@")
    name, colon, quantisation = rest.partition(":")
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name or (colon and _is_ollama(name)):
        raise HubError(
            _hint(text) or f"hf://{text} does not name a model: write hf://org/name or hf://org/name@revision"
        )
    if colon and not _QUANTISATION.fullmatch(quantisation):
        raise HubError(f"hf://{text}: write a quantisation such as Q4_K_M after the colon, or no colon")
    if at and not _REVISION.fullmatch(revision):
        raise HubError(f"hf://{text}: write a branch, tag or commit after the @, or no @")
    return _Repository(name, quantisation or None, revision or None)


def _is_ollama(name: str) -> bool:
    return "/" not in name or name.startswith("library/")


def _hint(text: str) -> str:
    name = re.sub(r"^(https?://)?(www\.)?(huggingface\.co|hf\.co)/", "", text)
    if "://" in name:
        return ""
    repository, colon, _ = name.partition(":")
    if colon and _is_ollama(repository):
        return (
            f"{text} is a name of Ollama, whose registry is not read: give a repository of the hub, with the model "
            f"in safetensors or GGUF, such as hf://ORG/{repository.rpartition('/')[2]}-GGUF:Q4_K_M"
        )
    if colon and name != text and _REPOSITORY.fullmatch(repository):
        return f"{text} is a page of the hub: give hf://{name}"
    if file := _GGUF_PAGE.fullmatch(name):
        return f"{text} is a page of the hub: give hf://{file[1]}:{file[2]}"
    page = re.split(r"/(?:tree|blob|resolve|raw|commits?|discussions)(?:/|$)|[?#]", name)[0]
    repository = "/".join(page.split("/")[:2]).rstrip("/")  # the oldest ones have no organization
    if name != text and _REPOSITORY.fullmatch(repository):
        return f"{text} is a page of the hub: give hf://{repository}"
    return ""


def _local(path: Path, content: str) -> Path:
    path = _readable(path, content)
    if path.is_file():
        parts = parts_of(path.name, _names(path.parent))
        return local_directory([path.parent / name for name in choose_files(parts, None, str(path.parent))])
    if content != _MODEL and any(any(path.glob(pattern)) for pattern in (*CONFIG_FILES, *TOKENIZER_FILES)):
        return path
    names = [] if has_weights(path, besides="gguf") else _names(path)
    if not names:
        return path
    models = models_of(names)
    if len(models) > 1:
        files = ", ".join(model.files[0] for model in models)
        raise ModelNotFound(f"{path} has {len(models)} models in GGUF: give one of the files {files}")
    return local_directory([path / name for name in choose_files(names, None, str(path))])


def _on_claim(text: str) -> Path:
    found = _CLAIM.fullmatch(text)
    if found is None or ".." in text.split("/"):
        raise HubError(f"pvc://{text} does not name a model on a volume: write pvc://claim/path")
    if not os.path.isdir(MODEL_DIRECTORY):
        raise HubError(
            f"pvc://{text} names a PersistentVolumeClaim, which only the pods of an InferenceService mount: "
            "give a directory here"
        )
    path = Path(MODEL_DIRECTORY, found[2] or "")
    if not os.path.exists(path):
        raise ModelNotFound(
            f"pvc://{text}: the claim {found[1]} has no {found[2]}, or this user may not see it: correct the path"
        )
    return path


def _bucket(text: str) -> tuple[str, str]:
    found = _BUCKET.fullmatch(text)
    if found is None or ".." in text:
        raise HubError(f"s3://{text} does not name a model in a bucket: write s3://bucket/prefix")
    return found[1], found[2] or ""


def _names(path: Path) -> list[str]:
    return [file.name for file in path.iterdir() if file.suffix.lower() == ".gguf"]


def _readable(path: Path, content: str) -> Path:
    # a directory, or a GGUF file
    or_file = ", or a file in GGUF" if content == _MODEL else ""
    wanted = f"give the directory that holds {content}{or_file}"
    if not os.path.exists(path):
        raise ModelNotFound(f"{path} does not exist, or may not be seen by this user: {wanted}")
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            raise HubError(f"{path} may not be read by this user: change its permissions")
        return path
    if path.suffix.lower() != ".gguf":
        raise HubError(explain(path) or f"{path} is a file: {wanted}")
    return path
