"""GET /docs: the OpenAPI document as one page for people, without scripts and without anything from elsewhere."""

import json
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem }
code, h2 { font-family: ui-monospace, monospace; font-size: 0.95em }
table { border-collapse: collapse; margin: 0.5rem 0 1rem }
td, th { text-align: left; vertical-align: top; padding: 0.15rem 1rem 0.15rem 0 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } a { color: #8cf } }
"""


def render(document: dict[str, Any]) -> str:
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>",
        "<p>This page for programs: <a href=openapi.json>openapi.json</a>.</p><ul>",
    ]
    endpoints = [
        (f"{method.upper()} {path}", operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    parts += [f'<li><a href="#{escape(name)}"><code>{escape(name)}</code></a>' for name, _ in endpoints]
    parts.append("</ul>")
    parts += [_endpoint(name, operation) for name, operation in endpoints]
    parts.append("<h1>Objects</h1>")
    parts += [_component(name, schema) for name, schema in document["components"]["schemas"].items()]
    return "".join([*parts, "</body></html>"])


def _endpoint(name: str, operation: dict[str, Any]) -> str:
    parts = [f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(operation.get("description", ""))}</p>']
    if "requestBody" in operation:
        parts.append(f"<p>Body: {_content(operation['requestBody'])}</p>")
    parts.append("<table>")
    for status, answer in operation["responses"].items():
        described = escape(answer["description"])
        parts.append(f"<tr><td><code>{escape(status)}</code><td>{described}<td>{_content(answer)}")
    return "".join([*parts, "</table>"])


def _component(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(field)}</code><td>{_type(described)}"
        f"<td>{'required' if field in required else _default(described)}"
        f"<td>{escape(described.get('description', ''))}"
        for field, described in schema.get("properties", {}).items()
    ]
    about = escape(schema.get("description", ""))
    return f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{about}</p><table>{"".join(rows)}</table>'


def _content(holder: dict[str, Any]) -> str:
    return " or ".join(
        f"<code>{escape(media)}</code> {_type(value['schema'])}" for media, value in holder["content"].items()
    )


def _default(described: dict[str, Any]) -> str:
    return f"default <code>{escape(json.dumps(described['default']))}</code>" if "default" in described else ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))
