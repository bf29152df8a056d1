"""Download hf:// models with huggingface_hub, with progress and one-line errors.

The library is slow to import, so source.py imports this module at the first download. It reads HF_TOKEN,
HF_HUB_OFFLINE, HF_ENDPOINT and HF_HOME.
"""

import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from tqdm.auto import tqdm

from kvasir.hub.gguf.gguf_choice import choose_files
from kvasir.hub.gguf.gguf_model import described_directory, link_weights, open_file, remember, remembered
from kvasir.hub.gguf.remote_file import open_remote
from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound

log = logging.getLogger(__name__)

T = TypeVar("T")
_HEADER_BYTES: Final = 2**18  # at a time, of a header of safetensors

# Sub-folders hold other formats, except 1_Pooling and the like; `consolidated` files hold the same weights in
# Mistral's.
IGNORED = ["[!0-9]*/*", "[0-9][!_]*/*", "consolidated*"]


def download(
    repository: str,
    revision: str | None,
    patterns: list[str],
    cache_dir: str | None,
    progress: Callable[[int, int], None] | None,
) -> Path:
    """Return the directory of a repository with these files. Raises HubError."""
    with explained(repository, revision, cache_dir):
        return _snapshot(repository, revision, cache_dir, progress, patterns=patterns, ignored=IGNORED)


def read_remote(repository: str, commit: str, name: str, read: Callable[[BinaryIO, int], T]) -> T | None:
    """Return the result of `read`, which gets a file and its size, and may read parts; None without the file.

    Raises HubError.
    """
    with explained(repository, commit, None):
        try:
            return read(*open_remote(repository, commit, name, _HEADER_BYTES))
        except EntryNotFoundError:
            return None


def download_gguf(
    repository: str,
    quantisation: str | None,
    revision: str | None,
    weights: bool,
    cache_dir: str | None,
    progress: Callable[[int, int], None] | None,
) -> Path:
    """Return the directory that describes a model in GGUF; of its files, read only a header without `weights`.

    Raises HubError.
    """
    name = name_of(repository, revision)
    with explained(repository, revision, cache_dir):
        source = f"{name} {quantisation}"
        try:
            snapshot, names = _list(repository, revision, cache_dir)
        except LocalEntryNotFoundError:
            # an init container with a token has read the header, and this container has none
            if not weights and (directory := remembered(source)):
                return directory
            raise
        chosen = choose_files(names, quantisation, name)
        if weights:
            snapshot = _snapshot(repository, revision, cache_dir, progress, patterns=chosen)
        files = [snapshot / file for file in chosen]
        identity = f"{repository}@{snapshot.name} {' '.join(chosen)}"
        here = all(file.exists() for file in files)
        parts = [partial(open_remote, repository, snapshot.name, file) for file in chosen]
        directory = described_directory(
            f"{name}/{chosen[0]}", identity, [partial(open_file, file) for file in files] if here else parts
        )
        if here:
            link_weights(directory, files)
        remember(source, directory)
        return directory


def _list(repository: str, revision: str | None, cache_dir: str | None) -> tuple[Path, list[str]]:
    # the commit's directory, which may not exist yet, and its files
    if not constants.HF_HUB_OFFLINE:
        try:
            info = HfApi(endpoint=constants.ENDPOINT).model_info(repository, revision=revision)
        except (HfHubHTTPError, ValueError):
            raise
        except Exception as error:  # the hub cannot be reached
            log.debug("%s cannot be listed: %s", repository, error)
        else:
            names = [entry.rfilename for entry in info.siblings or []]
            return _snapshots(repository, cache_dir) / str(info.sha), names
    try:
        cached = _snapshot(repository, revision, cache_dir, None, local=True)
    except LocalEntryNotFoundError as error:
        path = getattr(error, "snapshot_path", None)  # other quantisations are not there
        if path is None:
            raise
        cached = Path(path)
    names = [file.relative_to(cached).as_posix() for file in cached.rglob("*.gguf")]
    if not names:
        raise LocalEntryNotFoundError(f"{cached} has no GGUF file")
    return cached, names


def _snapshots(repository: str, cache_dir: str | None) -> Path:
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(cache_dir or constants.HF_HUB_CACHE) / folder / "snapshots"


def _snapshot(
    repository: str,
    revision: str | None,
    cache_dir: str | None,
    progress: Callable[[int, int], None] | None,
    *,
    patterns: list[str] | None = None,
    ignored: list[str] | None = None,
    local: bool = False,
) -> Path:
    meter = _Meter(progress)
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                # some versions fail offline without it
                local_files_only=local or constants.HF_HUB_OFFLINE,
                allow_patterns=patterns,
                ignore_patterns=ignored,
                tqdm_class=meter.bar_class(),
            )
        )
    except Exception:
        if meter.raised is not None:
            raise _Ended(meter.raised) from None
        raise


class _Ended(Exception):
    """The caller's progress raised this error."""


@contextmanager
def explained(repository: str, revision: str | None, cache_dir: str | None) -> Iterator[None]:
    try:
        yield
    except HubError:
        raise
    except _Ended as ended:
        raise ended.args[0] from None
    except Exception as error:  # there is no common base class
        name = name_of(repository, revision)
        raise _explain(error, name, repository, cache_dir or constants.HF_HUB_CACHE) from error


def name_of(repository: str, revision: str | None) -> str:
    return f"hf://{repository}" + (f"@{revision}" if revision else "")


class _Meter:
    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._bars: list[tqdm] = []
        self._reported = (0, 0)
        # from `progress`; it ends the download in each of the library's threads
        self.raised: BaseException | None = None

    def bar_class(self) -> type[tqdm]:
        """Return the class of a progress bar that draws nothing and reports here.

        The library makes one that counts files and, by its version, one or two that count bytes (received,
        written). Bytes of an earlier try count as written from the start.
        """
        meter = self

        class Bar(tqdm):  # type: ignore[misc]
            monitor_interval = 0  # no thread that redraws

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs | {"disable": False, "file": io.StringIO()})
                self._counts_bytes = kwargs.get("unit") == "B"
                if self._counts_bytes:
                    meter._bars.append(self)

            def display(self, *args: Any, **kwargs: Any) -> None:
                pass  # tqdm keeps its lock forever if this raises

            def update(self, n: float | None = 1) -> None:
                super().update(n)
                if self._counts_bytes:
                    meter._report()

        return Bar

    def _report(self) -> None:
        if self._progress is None:
            return
        with self._lock:
            if self.raised is not None:
                raise self.raised
            total = int(max(bar.total or 0 for bar in self._bars))
            done = min(int(max(bar.n for bar in self._bars)), total)
            if (done, total) == self._reported:
                return
            self._reported = done, total
            try:
                self._progress(done, total)
            except BaseException as error:
                self.raised = error
                raise


def _explain(error: Exception, name: str, repository: str, cache_dir: str) -> HubError:
    page = f"{constants.ENDPOINT}/{repository}"
    token = "with the token that is set" if get_token() else "without a token"
    if isinstance(error, GatedRepoError):
        return ModelNotFound(
            f"{name} is gated and may not be read {token}: ask for access at {page}, then set HF_TOKEN to a token "
            "of that account"
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFound(
            f"{name} was not found {token}: check the name at {page}, or that of your directory; for a private "
            "model set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(
            f"{name}: the model has no such revision; see its branches, tags and commits at {page}"
        )
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__  # nothing in the cache either
    if isinstance(error, LocalEntryNotFoundError):
        return _unreachable(error, name, cache_dir)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, name, token)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ConnectionError | TimeoutError):
        return DownloadFailed(f"{name} could not be written to {error.filename or cache_dir}: {error.strerror}")
    return DownloadFailed(
        f"{name} could not be downloaded: {type(error).__name__}: {_first_line(error)}; try again"
    )


def _unreachable(error: Exception, name: str, cache_dir: str) -> HubError:
    if constants.HF_HUB_OFFLINE:
        return ModelNotFound(
            f"{name} is not (or not completely) in {cache_dir} and HF_HUB_OFFLINE is set: download it there first, "
            "unset HF_HUB_OFFLINE, or check the revision"
        )
    cause = error.__cause__ or error
    return DownloadFailed(
        f"{name} is not (or not completely) in {cache_dir} and {constants.ENDPOINT} could not be reached "
        f"({type(cause).__name__}: {_first_line(cause)}): check the network, proxy and HF_ENDPOINT, or give a "
        "downloaded model as file:///path"
    )


def _refused(error: HfHubHTTPError, name: str, token: str) -> HubError:
    status = error.response.status_code
    if status in (401, 403):
        return ModelNotFound(
            f"{name} may not be read {token} ({constants.ENDPOINT} answered {status}): set HF_TOKEN to a valid "
            "token that may read it"
        )
    advice = "wait a while and try again" if status == 429 or status >= 500 else _first_line(error)
    return DownloadFailed(f"{name} could not be downloaded: {constants.ENDPOINT} answered {status}; {advice}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
