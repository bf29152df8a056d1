"""List a model in a bucket of S3 or a compatible store, and read its files from any offset.

Credentials, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and others), or from
the identity of the pod or machine.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from kvasir.hub.fetching.file_listing import FileListing, ListedFile
from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound

if TYPE_CHECKING:
    from obstore import GetOptions

log = logging.getLogger(__name__)

# The library retries a request by itself, and a Job much longer.
MAX_RETRIES: Final = 2
MAX_REQUEST_SECONDS: Final = 600  # of a whole file
MAX_LISTED_FILES: Final = 100_000
_STATUS: Final = re.compile(r"status code: (\d+)[^:]*:.*?(?:<Code>(\w+)</Code>|$)", re.DOTALL)
_PASSWORD: Final = re.compile(r"//[^/@\s]*@")  # of AWS_ENDPOINT_URL
_MD5: Final = re.compile(r"[0-9a-f]{32}")


def list_bucket(
    source: str, bucket: str, prefix: str, choose: Callable[[Sequence[str]], Sequence[str]]
) -> FileListing:
    """Return the files below the prefix that `choose` returns, by their names below it. Raises HubError."""
    folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    with _explained(source):
        store = S3Store(
            bucket,
            client_options={"timeout": f"{MAX_REQUEST_SECONDS}s", "allow_http": True},
            retry_config={"max_retries": MAX_RETRIES},
        )
        entries: dict[str, Any] = {}
        for chunk in obstore.list(store, folder or None):
            entries |= {entry["path"].removeprefix(folder): entry for entry in chunk}
            if len(entries) > MAX_LISTED_FILES:
                raise ModelNotFound(
                    f"{source} has more than {MAX_LISTED_FILES} files: give the prefix of one model"
                )
    if not entries:
        raise ModelNotFound(f"{source} has no files: check the bucket and the prefix")
    chosen = choose([*entries])
    files = [_listed(source, store, name, entries[name]) for name in chosen]
    return FileListing(source, "", _with_true_hashes(source, files), frozenset(entries).difference(chosen))


def _listed(source: str, store: S3Store, name: str, entry: Any) -> ListedFile:
    tag = str(entry["e_tag"] or "")
    read = partial(_read, source, store, entry["path"], tag)
    # that of an upload in parts is not a hash of the content
    digest = tag.strip('"') if _MD5.fullmatch(tag.strip('"')) else ""
    return ListedFile(name, entry["size"], digest, partial(hashlib.md5, usedforsecurity=False), read, tag)


def _with_true_hashes(source: str, files: Sequence[ListedFile]) -> tuple[ListedFile, ...]:
    # with encryption by KMS, the tags look like hashes: the smallest file shows it
    hashed = [file for file in files if file.digest]
    if not hashed:
        return tuple(files)
    probe = min(hashed, key=lambda file: file.size)
    found = probe.new_hash()
    for chunk in probe.read(0) if probe.size else ():
        found.update(chunk)
    if found.hexdigest() == probe.digest:
        return tuple(files)
    log.warning("the store of %s has no hashes of its files: only their sizes are verified", source)
    return tuple(replace(file, digest="") for file in files)


def _read(source: str, store: S3Store, path: str, tag: str, offset: int) -> Generator[bytes]:
    options: GetOptions = {"range": {"offset": offset}} if offset else {}
    if tag:  # the rest of a file that has been replaced is of no use
        options["if_match"] = tag
    with _explained(source):
        for chunk in obstore.get(store, path, options=options).stream():
            yield bytes(chunk)


@contextmanager
def _explained(source: str) -> Generator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise _explain(source, error) from error


def _explain(source: str, error: Exception) -> HubError:
    status = _STATUS.search(str(error))
    code = status[1] if status else ""
    named = f" ({status[2]})" if status and status[2] else ""
    if code in ("401", "403"):
        return ModelNotFound(
            f"{source} may not be read: the store answered {code}{named}; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY to a key that may list and read it"
        )
    if code == "404":
        return ModelNotFound(
            f"{source} was not found: the store answered 404{named}; check the bucket and the prefix"
        )
    first_line = _PASSWORD.sub("//", str(error).partition("\n")[0])
    why = f"the store answered {code}{named}" if code else first_line
    return DownloadFailed(
        f"{source} could not be downloaded: {why}; check AWS_ENDPOINT_URL and AWS_REGION, or try again"
    )
