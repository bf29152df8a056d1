"""The page on screens of several sizes, and for people who use the keyboard. `make test-page`."""

import pytest
from playwright.async_api import Browser

from page.browser import opened
from runtime.frontend.harness import Frontend, running_frontend, script_for


@pytest.mark.parametrize("width", [320, 390, 800, 1400])
async def test_page_fits_its_screen(browser: Browser, width: int) -> None:
    text = f"{'long' * 60}\n```\n{'code ' * 80}\n```"
    size = {"width": width, "height": 600}
    async with running_frontend() as frontend, opened(browser, frontend.url, viewport=size) as tab:
        frontend.engine.script = script_for(text)
        await tab.is_ready()
        await tab.ask("word" * 60)
        await tab.has_answered()
        if not await tab.page.locator("#service").is_visible():
            await tab.page.click("#state")
        assert await tab.page.locator("#ranks li").is_visible()
        assert await tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert await tab.page.evaluate("document.documentElement.scrollHeight") <= 600
        assert await tab.page.locator("#log").evaluate("log => log.scrollWidth <= log.clientWidth")
        await tab.page.click("#state")
        assert not await tab.page.locator("#service").is_visible()


async def test_controls_have_names_and_can_be_reached_by_key(browser: Browser, model: Frontend) -> None:
    unnamed = """[...document.querySelectorAll("button, input, textarea, a, summary, progress")].filter(each =>
        !(each.ariaLabel || each.textContent.trim() && each.tagName != "TEXTAREA" || each.labels?.length))
        .map(each => each.outerHTML)"""
    async with opened(browser, model.url) as tab:
        await tab.ask("Oslo or Rome?")
        await tab.has_answered()
        assert await tab.page.evaluate(unnamed) == []
        await tab.page.focus("#prompt")
        await tab.page.keyboard.press("Tab")
        assert await tab.page.evaluate("document.activeElement.id") == "clear"
