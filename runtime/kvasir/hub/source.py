"""Find a model by hf://, file:// or demo://, and put it on this machine."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.other_formats import explain
from kvasir.hub.pooling_info import POOLING_FILES
from kvasir.hub.tokenizer_files import TOKENIZER_FILES
from kvasir.hub.weight_scheme import COMPANIONS

CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
    "chat_template.json",
    *COMPANIONS,
)
DEMO = "demo://"
_DEMO = Path(__file__).with_name("demo")
_ACCEPTED = "hf://org/name[@revision], org/name, name, file:///path, a path, or demo://"
_SEGMENT = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?:{_SEGMENT}/)?{_SEGMENT}")
_REVISION = re.compile(r"[A-Za-z0-9._/+-]+")  # a test compares the CRD's grammar


def normalise(text: str) -> str:
    """Return the model as hf://org/name[@revision], file:///path or demo://.

    A path that exists wins over a repository of the same name. Raises HubError.
    """
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme == "hf":
            _repository(rest)
        elif scheme == "file":
            if not rest.startswith("/"):
                raise HubError(f"{text} has no absolute path: write it with three slashes, file:///path")
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
    content: str = "the model's config.json and weights",
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
        return _existing_directory(Path(rest), content)
    if scheme != "hf":
        raise HubError(f"{source} is not a model source: give {_ACCEPTED}")
    from kvasir.hub.huggingface import download

    repository, revision = _repository(rest)
    patterns = [*CONFIG_FILES, *POOLING_FILES, *TOKENIZER_FILES] + (["*.safetensors"] if weights else [])
    return download(repository, revision, patterns, download_dir, progress)


def _repository(text: str) -> tuple[str, str | None]:
    name, at, revision = text.partition("@")
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise HubError(
            _hint(text) or f"hf://{text} does not name a model: write hf://org/name or hf://org/name@revision"
        )
    if at and not _REVISION.fullmatch(revision):
        raise HubError(f"hf://{text}: write a branch, tag or commit after the @, or no @")
    return name, revision or None


def _hint(text: str) -> str:
    name = re.sub(r"^(https?://)?(www\.)?(huggingface\.co|hf\.co)/", "", text)
    if "://" in name:
        return ""
    _, slash, rest = name.partition("/")
    repository, colon, tag = rest.partition(":")
    if colon and slash:
        made_from = re.sub(r"(?i)[-_.]?gguf$", "", repository)
        return (
            f"{text} names a GGUF file ({tag}), and GGUF is not read: give the repository with the safetensors "
            f"that it was made from, such as hf://ORG/{made_from}"
        )
    if ":" in name and not slash:
        return (
            f"{text} is a name of Ollama, whose models are GGUF files, which are not read: give the repository "
            f"with the model's safetensors, such as hf://ORG/{name.partition(':')[0]}"
        )
    page = re.split(r"/(?:tree|blob|resolve|raw|commits?|discussions)(?:/|$)|[?#]", name)[0]
    repository = "/".join(page.split("/")[:2]).rstrip("/")  # the oldest ones have no organization
    if name != text and _REPOSITORY.fullmatch(repository):
        return f"{text} is a page of the hub: give hf://{repository}"
    return ""


def _existing_directory(path: Path, content: str) -> Path:
    wanted = f"give the directory that holds {content}"
    if not os.path.exists(path):
        raise ModelNotFound(f"{path} does not exist, or may not be seen by this user: {wanted}")
    if not os.path.isdir(path):
        raise HubError(explain(path) or f"{path} is a file: {wanted}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise HubError(f"{path} may not be read by this user: change its permissions")
    return path
