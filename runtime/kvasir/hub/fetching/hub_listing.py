"""List a model of the Hugging Face hub, and read its files from any offset.

The library itself begins a file again after it was interrupted.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from functools import partial

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from kvasir.hub.fetching.file_listing import FileListing, Hash, ListedFile
from kvasir.hub.hub_errors import DownloadFailed
from kvasir.hub.huggingface import explained


def list_repository(
    source: str, repository: str, revision: str | None, choose: Callable[[Sequence[str]], Sequence[str]]
) -> FileListing:
    """Return the files that `choose` returns. Raises HubError."""
    commit, files = _tree(repository, revision)
    chosen = choose([*files])
    listed = (_listed(repository, revision, commit, files[name]) for name in chosen)
    return FileListing(source, commit, tuple(listed), frozenset(files).difference(chosen))


def _tree(repository: str, revision: str | None) -> tuple[str, dict[str, RepoFile]]:
    api = HfApi(endpoint=constants.ENDPOINT)
    with explained(repository, revision, None):
        commit = str(api.model_info(repository, revision=revision).sha)
        entries = api.list_repo_tree(repository, revision=commit, recursive=True)
        return commit, {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def _listed(repository: str, revision: str | None, commit: str, file: RepoFile) -> ListedFile:
    read = partial(_read, repository, revision, commit, file.path)
    # the parts of a quantisation may have a folder of their own, which a directory that is served has not
    name = file.path.rpartition("/")[2] if file.path.lower().endswith(".gguf") else file.path
    if file.lfs is not None:
        return ListedFile(name, file.size, file.lfs.sha256, hashlib.sha256, read)
    return ListedFile(name, file.size, file.blob_id or "", partial(_git_hash, file.size), read)


def _git_hash(size: int) -> Hash:
    return hashlib.sha1(b"blob %d\0" % size)


def _read(repository: str, revision: str | None, commit: str, name: str, offset: int) -> Generator[bytes]:
    url = hf_hub_url(repository, name, revision=commit, endpoint=constants.ENDPOINT)
    # offsets are those of the file, not of a compressed answer
    headers = {**build_hf_headers(), "Range": f"bytes={offset}-", "Accept-Encoding": "identity"}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with (
        explained(repository, revision, None),
        get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout) as response,
    ):
        hf_raise_for_status(response)
        if offset and response.status_code != 206:
            raise DownloadFailed(f"{url}: the server sends no parts of files, which going on with one needs")
        yield from response.iter_bytes()
