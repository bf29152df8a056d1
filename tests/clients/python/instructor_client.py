"""instructor in its mode for models that write JSON as text. Its other modes need tools or a response format."""

import instructor
import openai
from pydantic import BaseModel

from clients.python.replaying import API_KEY, BASE_URL, MODEL, run


class Answer(BaseModel):
    name: str
    replicas: int


def json_in_text() -> None:
    """The server of this replay answers with a JSON object between the fences of Markdown."""
    client = instructor.from_openai(
        openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0), mode=instructor.Mode.MD_JSON
    )
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Which deployment is this?"}],
        response_model=Answer,
        max_retries=0,
    )
    assert (answer.name, answer.replicas) == ("web", 3)


run(json_in_text)
