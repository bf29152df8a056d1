"""The chat of the page: streams, stop, reasoning, tool calls, errors and reloads. `make test-page`."""

from dataclasses import replace

import pytest
from playwright.async_api import Browser

from page.browser import opened
from runtime.frontend.harness import ANSWER, running_frontend, script_for
from runtime.frontend.parsed_models import EVERYTHING, TEXT, THOUGHTS, paced, rendered, running_model, thoughts

MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


async def test_answer_is_shown_while_it_arrives(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        frontend.engine.script.pause_at = 3
        await tab.ask("What is a pod?")
        await tab.shows("article.user", "What is a pod?")
        await tab.shows("article.assistant", "A pod")
        assert await tab.page.locator("#stop").is_visible()
        frontend.engine.resume()
        await tab.has_answered()
        assert await tab.answer() == ANSWER
        assert "tokens in" in await tab.note()
        frontend.engine.script.pause_at = None
        await tab.ask("Why?")
        await tab.has_answered()
        assert ANSWER in rendered(frontend), "the conversation is sent"


@pytest.mark.parametrize("way", ["click", "Escape"])
async def test_stop_ends_the_request_in_the_engine(browser: Browser, way: str) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        frontend.engine.script.pause_at = 3
        await tab.ask("What is a pod?")
        await tab.shows("article.assistant", "A pod")
        await (tab.page.click("#stop") if way == "click" else tab.page.keyboard.press("Escape"))
        await tab.has_answered()
        await frontend.idle()
        assert await tab.note() == "Stopped"
        frontend.engine.script.pause_at = None
        await tab.page.click("#retry")
        await tab.has_answered()
        assert await tab.answer() == ANSWER
        assert await tab.page.locator("article").count() == 2


async def test_reasoning_is_folded_and_results_are_sent(browser: Browser) -> None:
    async with running_model() as frontend, opened(browser, frontend.url) as tab:
        frontend.engine.script = paced(EVERYTHING)
        await tab.page.click("#options summary")
        await tab.page.fill("#tools", '[{"type": "function", "function": {"name": "weather"}}]')
        await tab.ask("Oslo or Rome?")
        await tab.has_answered()
        assert (await tab.answer()).strip() == TEXT
        reasoning = tab.page.locator("article.assistant .thoughts")
        assert not await reasoning.is_visible()
        await tab.page.click("article.assistant summary")
        assert await reasoning.inner_text() == THOUGHTS
        assert [await each.inner_text() for each in await tab.page.locator(".call pre").all()] == [
            '{\n  "city": "Oslo"\n}',
            '{\n  "city": "Rome"\n}',
        ]
        frontend.engine.script = script_for(thoughts() + "Rome.")
        for field, result in enumerate(("4 degrees", "20 degrees")):
            await tab.page.locator(".results textarea").nth(field).fill(result)
        await tab.page.click(".results button")
        await tab.has_answered()
        assert (await tab.answer()).strip() == "Rome."
        assert "<tool>4 degrees" in rendered(frontend)
        assert "<tool>20 degrees" in rendered(frontend)


async def test_tools_that_are_not_json_are_explained(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.page.click("#options summary")
        await tab.page.fill("#tools", "[{")
        await tab.ask("Hi")
        await tab.shows("#tools-note", "not a list in JSON")
        assert await tab.page.input_value("#prompt") == "Hi"
        assert not frontend.engine.seen.requests


async def test_output_of_the_model_is_never_markup(browser: Browser) -> None:
    async with running_frontend() as frontend:
        frontend.service.model_names = (MARKUP,)
        frontend.engine.script = script_for(
            f"{MARKUP}\n\n**bold** `{MARKUP}`\n```html\n{MARKUP}\n```\n- [link](javascript:alert(1))"
        )
        async with opened(browser, frontend.url) as tab:
            await tab.is_ready()
            await tab.ask(MARKUP)
            await tab.has_answered()
            answer = tab.page.locator("article.assistant .content")
            assert (await answer.inner_text()).count(MARKUP) == 3
            assert await answer.locator("strong").inner_text() == "bold"
            assert await answer.locator("pre").inner_text() == f"{MARKUP}\n"
            assert await tab.page.locator("article :is(img, script, a)").count() == 0
            assert await tab.page.inner_text("#title") == MARKUP
            assert await tab.page.title() == f"{MARKUP} · Kvasir"


@pytest.mark.parametrize("pause_at", [None, 40])
async def test_text_is_the_same_however_it_arrives(browser: Browser, pause_at: int | None) -> None:
    text = (
        "# Pods\nOne *pod*:\n\n1. a\n   - b\n2. c\n\n```py\nx = 1\n\n# no heading\n```\n"
        "`code` **b** 2 * 3 * 4 a_b_c"
    )
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        frontend.engine.script = replace(script_for(text), pause_at=pause_at, pace=0.01 if pause_at else 0.0)
        await tab.ask("List")
        if pause_at:
            await tab.shows("article.assistant", "x = 1")
            frontend.engine.resume()
        await tab.has_answered()
        html = await tab.page.locator("article.assistant .content").inner_html()
    assert html.replace("<span>", "").replace("</span>", "") == (
        '<p class="heading">Pods</p><p>One <em>pod</em>:</p><ol><li data-depth="0" value="1">a</li></ol>'
        '<ul><li data-depth="1">b</li></ul><ol><li data-depth="0" value="2">c</li></ol>'
        '<pre tabindex="0"><code>x = 1\n\n# no heading\n</code></pre>'
        "<p><code>code</code> <strong>b</strong> 2 * 3 * 4 a_b_c</p>"
    )


async def test_long_answer_is_followed_unless_the_user_scrolls(browser: Browser) -> None:
    text = "\n".join(f"Line {number} of a long answer." for number in range(150))
    bottom = "log => Math.round(log.scrollHeight - log.scrollTop - log.clientHeight)"
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        frontend.engine.script = replace(script_for(text), pause_at=1200)
        await tab.ask("Count")
        await tab.shows("article.assistant", "Line 60")
        log = tab.page.locator("#log")
        assert await log.evaluate(bottom) < 60
        await log.evaluate("log => { log.scrollTop = 0 }")
        frontend.engine.resume()
        await tab.has_answered()
        assert await tab.answer() == text
        assert await log.evaluate("log => log.scrollTop") == 0


async def test_message_without_an_engine_waits_and_is_answered(browser: Browser) -> None:
    async with running_frontend(engine=False) as frontend, opened(browser, frontend.url) as tab:
        await tab.shows("#state", "No engine")
        await tab.ask("What is a pod?")
        await tab.shows("article.assistant .note", "not ready (No engine). The message waits")
        await frontend.add_engine()
        await tab.has_answered()
        assert await tab.answer() == ANSWER


async def test_error_of_a_request_is_shown_with_its_text(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.page.click("#options summary")
        await tab.page.fill("#max-tokens", "999999")
        await tab.ask("Hi")
        await tab.has_answered()
        await tab.shows(".failed", "max_tokens")
        await tab.page.fill("#max-tokens", "3")
        await tab.page.click("#retry")
        await tab.has_answered()
        assert (await tab.note()).endswith("stopped at the token limit")
        await tab.page.fill("#max-tokens", "")
        frontend.engine.script.error = "the GPU is on fire"
        await tab.page.click("#retry")
        await tab.has_answered()
        await tab.shows(".failed", "fire")


async def test_reload_keeps_the_conversation(browser: Browser) -> None:
    async with running_frontend() as frontend, opened(browser, frontend.url) as tab:
        await tab.ask("What is a pod?")
        await tab.has_answered()
        frontend.engine.script.pause_at = 3
        await tab.ask("Again?")
        await tab.shows("article.assistant >> nth=1", "A pod")
        await tab.page.reload()
        await tab.shows("article.assistant >> nth=1", "Interrupted when the page was closed")
        await frontend.idle()
        assert await tab.page.locator("article").count() == 4
        assert await tab.page.locator("article.assistant .content").first.inner_text() == ANSWER
        await tab.page.click("#clear")
        await tab.page.reload()
        assert await tab.page.locator("article").count() == 0
