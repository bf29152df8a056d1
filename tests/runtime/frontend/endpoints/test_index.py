import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from kvasir import __version__
from kvasir.frontend.page.page_files import ASSETS, DOCS_FILES, PAGE_FILES
from runtime.frontend.harness import Frontend, running_frontend

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
FETCHING = ("src", "href", "action", "data", "srcset", "poster")
"""Attributes whose URL a browser loads, or opens on a click."""
OUTSIDE = re.compile(r"https?:|//[\w-]+\.\w|@import")
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
NAME = '<script>alert(1)</script>"onload=alert(1)'


class Elements(HTMLParser):
    """The elements of a page: tag and attributes, and the inline scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def urls(self) -> list[str]:
        return [value for _, attrs in self.found for name, value in attrs.items() if name in FETCHING and value]


def directives(answer: httpx.Response) -> dict[str, list[str]]:
    parts = answer.headers["content-security-policy"].split("; ")
    return {name: values for name, *values in (part.split() for part in parts)}


def index_of(**changed: Any) -> dict[str, Any]:
    paths = {"api": "/v1", "docs": "/docs", "metrics": "/metrics", "health": "/health"}
    return {"service": "kvasir", "version": __version__, **paths, "api_key_required": False, **changed}


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
async def test_index_is_json_for_programs(frontend: Frontend, path: str, accept: str) -> None:
    async with frontend.http(accept=accept) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == index_of()
    assert answer.text.endswith("\n")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
@pytest.mark.parametrize("settings", [{}, {"root_path": "/llm"}])
async def test_page_is_shown_at_every_printed_address(path: str, settings: dict[str, Any]) -> None:
    root = settings.get("root_path", "")
    async with running_frontend(**settings) as frontend, frontend.http(**BROWSER) as client:
        answer = await client.get(f"{root}{path}", follow_redirects=True)
        assert answer.status_code == 200
        assert answer.url.path == f"{root}/", "the URLs of the page are relative to this folder"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert {each.headers["vary"] for each in (*answer.history, answer)} == {"Accept"}
        for url in (*Elements(answer.text).urls(), "page/style.css"):
            loaded = await client.get(urljoin(str(answer.url), url))
            assert loaded.status_code == 200, url


async def test_page_is_found_without_the_last_slash_of_the_root_path() -> None:
    async with running_frontend(root_path="/llm") as frontend, frontend.http(**BROWSER) as client:
        answer = await client.get("/llm")
        assert (answer.status_code, answer.headers["location"]) == (307, "/llm/")


async def test_index_names_paths_below_the_root_path() -> None:
    async with running_frontend(root_path="/llm", api_key=("key",)) as frontend, frontend.http() as client:
        index = (await client.get("/llm/")).json()
        assert index["api"] == "/llm/v1"
        assert index["api_key_required"]
        assert (await client.get(index["docs"])).status_code == 200


async def test_page_runs_only_its_own_scripts(frontend: Frontend) -> None:
    async with frontend.http(**BROWSER) as client:
        answer = await client.get("/")
    policy = directives(answer)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == ["'none'"]
    for name in ("script-src", "style-src", "connect-src", "img-src"):
        assert policy[name] == ["'self'"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    for tag, attrs in Elements(answer.text).found:
        assert tag != "style"
        assert tag != "script" or attrs["src"]
        assert not [name for name in attrs if name == "style" or name.startswith("on")], (tag, attrs)


async def test_docs_run_only_swagger_ui(frontend: Frontend) -> None:
    async with frontend.http(**BROWSER) as client:
        answer = await client.get("/docs")
        for url in Elements(answer.text).urls():
            assert not urlsplit(url).netloc
            assert (await client.get(f"/{url}")).status_code == 200, url
    policy = directives(answer)
    assert policy["connect-src"] == ["'self'"]
    assert policy["script-src"][0] == "'self'"
    assert len(policy["script-src"]) == 2
    assert policy["script-src"][1].startswith("'sha256-")
    assert "SwaggerUIBundle" in answer.text


@pytest.mark.parametrize("path", sorted(ASSETS.iterdir()), ids=lambda path: path.name)
def test_assets_name_no_other_host(path: Any) -> None:
    assert not OUTSIDE.search(path.read_text().replace(NAMESPACE, ""))


@pytest.mark.parametrize("path", sorted({*PAGE_FILES, *DOCS_FILES, "/", "/docs"}))
async def test_files_are_sent_again_only_when_they_changed(frontend: Frontend, path: str) -> None:
    async with frontend.http(**BROWSER) as client:
        first = await client.get(path)
        assert first.status_code == 200
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["x-content-type-options"] == "nosniff"
        if path == "/docs":
            return
        again = await client.get(path, headers={"if-none-match": first.headers["etag"]})
        other = await client.get(path, headers={"if-none-match": '"other"'})
    assert (again.status_code, again.content) == (304, b"")
    assert other.content == first.content


@pytest.mark.parametrize(
    "path", ["/page/index.html", "/page/none.js", "/page/..%2froute.py", "/page/../route.py", "/docs/../app.py"]
)
async def test_other_files_are_not_served(frontend: Frontend, path: str) -> None:
    async with frontend.http(**BROWSER) as client:
        answer = await client.send(httpx.Request("GET", httpx.URL(frontend.url, raw_path=path.encode())))
    assert answer.status_code == 404


async def test_page_needs_no_key_and_shows_nothing_of_the_service() -> None:
    async with running_frontend(api_key=("key",)) as frontend, frontend.http(**BROWSER) as client:
        frontend.service.model_names = (NAME,)
        async with running_frontend() as other, other.http(**BROWSER) as open_client:
            for path in ("/", *PAGE_FILES):
                answer = await client.get(path)
                assert answer.status_code == 200
                assert answer.content == (await open_client.get(path)).content, "the same for every service"
        assert (await client.get("/v1/models")).status_code == 401


async def test_model_names_reach_the_page_as_json_only() -> None:
    async with running_frontend() as frontend, frontend.http(**BROWSER) as client:
        frontend.service.model_names = (NAME,)
        assert NAME not in (await client.get("/")).text
        listed = await client.get("/v1/models")
    assert listed.headers["content-type"] == "application/json"
    assert listed.json()["data"][0]["id"] == NAME


async def test_page_can_be_switched_off() -> None:
    async with running_frontend(disable_page=True) as frontend, frontend.http(**BROWSER) as client:
        for path in ("/", "/v1", "/v1/"):
            assert (await client.get(path)).json() == index_of()
        for path in PAGE_FILES:
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/docs")).status_code == 200
        for path in DOCS_FILES:
            assert (await client.get(path)).status_code == 200


async def test_docs_can_be_switched_off_with_the_page_left() -> None:
    async with running_frontend(disable_fastapi_docs=True) as frontend, frontend.http() as client:
        assert (await client.get("/")).json() == index_of(docs=None)
        assert (await client.get("/", headers=BROWSER)).text.startswith("<!doctype html>")
        for path in ("/docs", *DOCS_FILES):
            assert (await client.get(path)).status_code == 404


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG 2 defines it."""
    digits = colour.lstrip("#") if len(colour) == 7 else "".join(2 * digit for digit in colour.lstrip("#"))
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(scheme: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", (ASSETS / "style.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", light if scheme == "light" else dark))
    pairs = [(text, back) for text in ("text", "soft") for back in ("back", "card", "mine", "code")]
    pairs += [("accent", "card"), ("on-accent", "accent"), ("down", "back"), ("down", "card")]
    for text, back in pairs:
        one, other = sorted((luminance(colours[text]), luminance(colours[back])))
        assert (other + 0.05) / (one + 0.05) >= 4.5, f"--{text} on --{back}"
