"""Sends a streaming request to the demo service with OpenAI's client: `python ask.py http://demo` prints the
answer.

Tests on this machine import it, and copy it into a pod, so it needs only the `openai` package.
"""

import sys

import openai

QUESTION = "What is Kvasir?"


def ask(url: str) -> str:
    """Return the greedy answer."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


if __name__ == "__main__":
    print(ask(sys.argv[1]))
