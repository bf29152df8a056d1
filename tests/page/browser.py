"""A headless Chromium that shows pages of a service and records their requests."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Request, async_playwright

from debian import CACHE, unpacked

INSTALLED = ("chromium", "chromium-headless-shell", "google-chrome")
PACKAGE = "chromium-headless-shell"
PATIENCE_MS = 30_000


def program() -> Path:
    """Return the path of Chromium, which is fetched with apt-get if it is not installed. Raises NoProgram."""
    for name in INSTALLED:
        if installed := shutil.which(name):
            return Path(installed)
    return unpacked(PACKAGE, with_dependencies=True) / "usr/lib/chromium/chromium-headless-shell"


@dataclass
class Tab:
    """A tab at the page of a service. `page` is Playwright's, which waits for elements by itself."""

    page: Page
    url: str
    requests: list[str] = field(default_factory=list)
    """Path of each request, with its method."""
    problems: list[str] = field(default_factory=list)
    """Exceptions of scripts, violations of the content security policy, and requests to other servers."""

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda message: self._note(message.text))
        self.page.on("request", self._count)

    async def ask(self, text: str) -> None:
        await self.page.fill("#prompt", text)
        await self.page.press("#prompt", "Enter")

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element contains this text."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for(timeout=PATIENCE_MS)

    async def is_ready(self) -> None:
        await self.shows("#state[data-kind=ready]", "Ready")

    async def has_answered(self) -> None:
        await self.page.locator("#send").wait_for(timeout=PATIENCE_MS)

    async def answer(self) -> str:
        text: str = await self.page.locator("article.assistant .content").last.inner_text()
        return text

    async def note(self) -> str:
        text: str = await self.page.locator("article.assistant .foot .note").last.inner_text()
        return text

    def _note(self, text: str) -> None:
        if "Failed to load resource" not in text:  # an answer with an error status
            self.problems.append(text)

    def _count(self, request: Request) -> None:
        there, here = urlsplit(request.url), urlsplit(self.url)
        self.requests.append(f"{request.method} {there.path}")
        if there.netloc != here.netloc and there.scheme != "data":
            self.problems.append(f"a request to {request.url}")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    path = program()
    env: dict[str, str | float | bool] = {**os.environ}
    if path.is_relative_to(folder := CACHE / PACKAGE):  # its libraries are there too
        env["LD_LIBRARY_PATH"] = ":".join(sorted({str(library.parent) for library in folder.rglob("*.so*")}))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, env=env)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, **context: Any) -> AsyncIterator[Tab]:
    """Open the page of a service in a new profile. Everything that it loads must come from there."""
    profile = await browser.new_context(**context)
    try:
        tab = Tab(await profile.new_page(), url)
        tab.watch()
        await tab.page.goto(url)
        yield tab
        assert not tab.problems
    finally:
        await profile.close()
