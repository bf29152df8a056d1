"""API keys, paths of proxies, TLS and /docs in the browser. `make test-page`."""

from pathlib import Path

from playwright.async_api import Browser

from page.browser import opened
from runtime.frontend.harness import ANSWER, running_frontend
from runtime.frontend.http.connections.test_tls import Files


async def test_key_is_asked_for_and_kept_for_the_tab(browser: Browser) -> None:
    key = "schlüssel-🔑"
    async with running_frontend(api_key=(key,)) as frontend, opened(browser, frontend.url) as tab:
        await tab.shows("#key-note", "needs an API key")
        await tab.shows("#state", "Ready")
        for _ in range(2):
            async with tab.page.expect_response("**/load"):
                pass
        assert tab.requests.count("GET /v1/models") == 1, "each refusal is a line in the log of the server"
        assert "demo" not in await tab.page.inner_text("body")
        await tab.ask("Hi")
        await tab.shows(".failed", "API key")
        await tab.page.fill("#key", "wrong")
        await tab.page.press("#key", "Enter")
        await tab.shows("#key-note", "Incorrect API key")
        await tab.page.fill("#key", key)
        await tab.page.press("#key", "Enter")
        await tab.shows("#facts", "demo-alias")
        await tab.page.click("#retry")
        await tab.has_answered()
        assert await tab.answer() == ANSWER
        await tab.page.reload()
        await tab.shows("#facts", "demo-alias")
        assert await tab.page.evaluate("localStorage.length + document.cookie.length") == 0
        other = await tab.page.context.new_page()
        await other.goto(frontend.url)
        await other.locator("#key-note").filter(has_text="needs an API key").wait_for()


async def test_page_works_below_a_path(browser: Browser) -> None:
    async with running_frontend(root_path="/llm") as frontend, opened(browser, f"{frontend.url}/llm/v1") as tab:
        await tab.is_ready()
        await tab.ask("What is a pod?")
        await tab.has_answered()
        assert await tab.answer() == ANSWER
        assert await tab.page.inner_text("#base-url") == f"{frontend.url}/llm/v1"
        assert all(request.partition(" ")[2].startswith("/llm/") for request in tab.requests)


async def test_page_works_over_tls(browser: Browser, tmp_path: Path) -> None:
    tls = Files(tmp_path).config()
    async with (
        running_frontend(tls=tls) as frontend,
        opened(browser, frontend.url, ignore_https_errors=True) as tab,
    ):
        await tab.is_ready()
        await tab.ask("What is a pod?")
        await tab.has_answered()
        assert await tab.answer() == ANSWER
        assert (await tab.page.inner_text("#base-url")).startswith("https://")


async def test_docs_send_a_request_and_load_nothing_else(browser: Browser) -> None:
    async with running_frontend(root_path="/llm") as frontend, opened(browser, f"{frontend.url}/llm/docs") as tab:
        await tab.page.get_by_role("button", name="/v1/models", exact=False).first.click()
        await tab.page.click(".opblock.is-open .execute")
        await tab.shows(".opblock.is-open .responses-table .response", '"demo-alias"')
        assert "GET /llm/v1/models" in tab.requests


async def test_docs_are_not_linked_without_them(browser: Browser) -> None:
    async with running_frontend(disable_fastapi_docs=True) as frontend, opened(browser, frontend.url) as tab:
        await tab.is_ready()
        assert not await tab.page.get_by_role("link", name="API").is_visible()
