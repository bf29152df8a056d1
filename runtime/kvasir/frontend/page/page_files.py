"""Files for browsers, and the headers that they are sent with.

Every URL in them is relative, so a proxy may show the server below any path, and their content security policies
name no other host.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPES: Final = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".png": "image/png",
    }
)
ASSETS: Final = Path(__file__).parent / "assets"
PAGE: Final = ASSETS / "index.html"
# By URL path.
PAGE_FILES: Final = MappingProxyType(
    {f"/page/{path.name}": path for path in sorted(ASSETS.iterdir()) if path != PAGE}
)

SAME_ORIGIN: Final = (
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_POLICY: Final = (
    f"{SAME_ORIGIN}; script-src 'self'; style-src 'self'; img-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def _of_swagger_ui(name: str) -> Path:
    # Found without an import: the package is used for its files, and its code would import more of FastAPI.
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'fastapi_offline'", name="fastapi_offline")
    return Path(spec.origin).parent / "static" / name


# By URL path.
DOCS_FILES: Final = MappingProxyType(
    {
        "/docs/swagger-ui-bundle.js": _of_swagger_ui("swagger-ui-bundle.js"),
        "/docs/swagger-ui.css": _of_swagger_ui("swagger-ui.css"),
        "/docs/icon.svg": ASSETS / "icon.svg",
    }
)


@dataclass(frozen=True)
class _File:
    content: bytes
    etag: str


@cache
def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def send_file(request: Request, path: Path, policy: str = SAME_ORIGIN) -> Response:
    """Return the file, or 304 if the browser has this version."""
    file = _read(path)
    headers = guarded(policy) | {"etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers | {"content-type": MEDIA_TYPES[path.suffix]})


def guarded(policy: str) -> dict[str, str]:
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
