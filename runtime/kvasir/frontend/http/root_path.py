"""--root-path: the server's path behind a proxy, which may remove it from requests or not."""

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """The outermost layer: all others see paths as the API describes them."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path:  # the URLs of pages are relative to a folder
                await RedirectResponse(f"{path}/")(scope, receive, send)
                return
            while path.startswith(self._root_path + "/"):
                path = path.removeprefix(self._root_path)
            scope = {**scope, "path": path, "root_path": self._root_path}
        await self._app(scope, receive, send)
