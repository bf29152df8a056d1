"""Read parts of a file of the hub, so that frontends need not download a model for its header."""

import io
from typing import Any, BinaryIO, Final, cast

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from kvasir.hub.hub_errors import DownloadFailed

# Most headers of GGUF take two requests.
_PART_BYTES: Final = 8 * 2**20


def open_remote(repository: str, revision: str, name: str, part_bytes: int | None = None) -> tuple[BinaryIO, int]:
    """Return a file and its size. Raises the library's errors, and DownloadFailed."""
    raw = _RemoteFile(hf_hub_url(repository, name, revision=revision, endpoint=constants.ENDPOINT))
    return cast(BinaryIO, io.BufferedReader(raw, part_bytes or _PART_BYTES)), raw.size


class _RemoteFile(io.RawIOBase):
    def __init__(self, url: str) -> None:
        self._url = url
        self._position = 0
        self.size = self._get(0, 1)[1]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self.size:
            return 0
        content, _ = self._get(self._position, min(len(buffer), self.size - self._position))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _get(self, start: int, count: int) -> tuple[bytes, int]:
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{start + count - 1}"}
        # as a stream: a server that ignores the range would send a whole file into memory
        with get_session().stream("GET", self._url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code != 206 or not total.isdecimal():
                raise DownloadFailed(
                    f"{self._url}: the server sends no parts of files, which reading a header needs"
                )
            return response.read(), int(total)
