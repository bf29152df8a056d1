"""The page shows the model, its engines and their phases. `make test-page`."""

import pytest
from playwright.async_api import Browser

from kvasir.link.protocol import Dead, Progress
from kvasir_contract.phases import Phase
from page.browser import opened
from runtime.frontend.harness import running_frontend


async def test_page_shows_model_limits_ranks_and_load(browser: Browser) -> None:
    async with running_frontend(max_live_requests=77) as frontend, opened(browser, frontend.url) as tab:
        await frontend.add_engine()
        await tab.is_ready()
        await tab.shows("#title", "demo")
        facts = await tab.page.inner_text("#facts")
        for fact in ("demo-alias", "demo://", f"{frontend.service.llm.max_model_len:,} tokens"):
            assert fact in facts
        await tab.shows("#load", "0 of 77")
        await tab.shows("#load", "2 of 2")
        assert await tab.page.locator("#ranks li").count() == 2
        assert await tab.page.title() == "demo · Kvasir"


async def test_page_shows_each_phase_of_a_start(browser: Browser) -> None:
    async with running_frontend(engine=False) as frontend, opened(browser, frontend.url) as tab:
        await tab.shows("#state", "No engine")
        await tab.shows("#no-ranks", "None is connected")
        engine = await frontend.add_engine(ready=False)
        await tab.shows("#ranks", "Starting")
        engine._link.set_phase(Phase.LOADING, Progress(3_100_000_000, 15_000_000_000))
        await tab.shows("#state", "Loading 20 %")
        await tab.shows("#ranks", "3.1 GB of 15.0 GB loaded")
        assert await tab.page.locator("#ranks progress").evaluate("bar => bar.value / bar.max") == pytest.approx(
            0.2067, 0.01
        )
        engine._link.set_phase(Phase.WARMING)
        await tab.shows("#state", "Warming")
        assert not await tab.page.locator("#ranks progress").is_visible()
        engine.announce_ready()
        await tab.is_ready()


async def test_page_shows_a_lost_engine_and_its_successor(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.is_ready()
        frontend.engines.pop().close(Dead("out of memory"))
        await tab.shows("#ranks", "Not connected")
        await tab.shows("#state[data-kind=changing]", "No engine")
        await frontend.add_engine()
        await tab.is_ready()
        assert "Not connected" not in await tab.page.inner_text("#ranks")


async def test_page_notices_that_the_server_is_gone(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.is_ready()
        await tab.page.route("**", lambda route: route.abort())
        await tab.shows("#state[data-kind=down]", "Not reachable")
        await tab.page.unroute("**")
        await tab.is_ready()


async def test_hidden_page_asks_nothing(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.page.clock.install()
        await tab.page.reload()
        await tab.is_ready()
        show = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
        show += "document.dispatchEvent(new Event('visibilitychange')) }"
        await tab.page.evaluate(show, True)
        tab.requests.clear()
        await tab.page.clock.run_for(60_000)
        assert tab.requests == []
        async with tab.page.expect_request("**/health"):
            await tab.page.evaluate(show, False)
