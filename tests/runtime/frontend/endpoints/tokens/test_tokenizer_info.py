import json

from kvasir.hub.source import fetch
from runtime.frontend.harness import Frontend, running_frontend

PATH = "/tokenizer_info"


async def test_it_is_disabled_by_default(frontend: Frontend) -> None:
    async with frontend.http() as client:
        response = await client.get(PATH)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "endpoint_disabled"
    assert "--enable-tokenizer-info-endpoint" in error["message"]


async def test_it_has_the_tokenizers_files_and_the_template() -> None:
    async with running_frontend(enable_tokenizer_info_endpoint=True) as frontend, frontend.http() as client:
        info = (await client.get(PATH)).json()
    path = fetch("demo://", weights=False)
    config = json.loads((path / "tokenizer_config.json").read_text())
    template = info.pop("chat_template")
    assert info == {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    assert template == (path / "chat_template.jinja").read_text()
