"""A browser for each test; the page itself is opened with `page.browser.opened`."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from debian import NoProgram
from page.browser import chromium, program
from runtime.frontend.conftest import model

__all__ = ["model"]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    try:
        program()
    except NoProgram as missing:
        pytest.skip(str(missing))
    async with chromium() as result:
        yield result
