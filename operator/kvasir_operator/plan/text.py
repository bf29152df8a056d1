"""A plan as text: one line per action, then the status."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvasir_operator.plan.applies import Apply
from kvasir_operator.plan.plan import Plan

MAX_CHANGES: Final = 12  # listed fields of an object


def render(plan: Plan) -> str:
    lines = []
    if plan.new_link_keys:
        lines.append("create Secret with new link keys")
    lines += [f"{'close' if order.closed else 'open'} the gate of Pod/{order.pod.name}" for order in plan.gates]
    for apply in plan.applies:
        lines += describe(apply)
    lines += [f"delete {kind.kind}/{name}: no longer needed" for (kind, name), _ in plan.prunes]
    for deletion in plan.deletions:
        grace = "" if deletion.grace is None else f" (grace {deletion.grace} s)"
        lines.append(f"delete Pod/{deletion.pod.name}{grace}: {deletion.why}")
    lines.append("look again: " + ("at the next event" if plan.again is None else f"in {plan.again:g} s"))
    return "\n".join([*lines, *status_lines(plan.status)]) + "\n"


def describe(apply: Apply) -> list[str]:
    kind, name = apply.key
    if apply.existing is None:
        return [f"create {kind.kind}/{name}"]
    verb = "adopt" if not apply.existing.object["metadata"].get("ownerReferences") else "update"
    changes = list(changed_fields(apply.body, apply.existing.object))
    more = [f"    and {len(changes) - MAX_CHANGES} more"] if len(changes) > MAX_CHANGES else []
    return [f"{verb} {kind.kind}/{name}", *(f"    {change}" for change in changes[:MAX_CHANGES]), *more]


def status_lines(status: Mapping[str, Any]) -> list[str]:
    engines, frontends = status.get("engines", {}), status.get("frontends", {})
    lines = [
        f"status: engines {engines.get('summary', '-')}, "
        f"frontends {frontends.get('ready', 0)}/{frontends.get('desired', 0)}"
    ]
    for rank in engines.get("ranks", ()):
        words = (str(rank[field]) for field in ("phase", "progress", "message") if field in rank)
        lines.append(f"    rank {rank['rank']}: {' '.join(words)}")
    lines += [
        f"    {entry['type']}={entry['status']} {entry['reason']}: {entry['message']}"
        for entry in status.get("conditions", ())
    ]
    return lines


def changed_fields(wanted: object, found: object, path: str = "") -> Iterator[str]:
    """Yield "path: found → wanted" for each field of `wanted` that differs in `found`."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for name, value in wanted.items():
            if path == "metadata.annotations" and name.endswith(_RECORDS):
                continue
            yield from changed_fields(value, found.get(name), f"{path}.{name}" if path else name)
    elif isinstance(wanted, list) and isinstance(found, list):
        keys = next(
            (key for key in _KEYS if all(isinstance(item, Mapping) and key in item for item in wanted)), None
        )
        by_key = {item[keys]: item for item in found if isinstance(item, Mapping) and keys in item} if keys else {}
        for index, item in enumerate(wanted):
            if keys is not None:
                yield from changed_fields(item, by_key.get(item[keys]), f"{path}[{item[keys]}]")
            else:
                yield from changed_fields(item, found[index] if index < len(found) else None, f"{path}[{index}]")
        if keys is None and len(found) > len(wanted):
            yield f"{path}: {len(found)} entries → {len(wanted)}"
    elif wanted != found:
        yield f"{path}: {_short(found)} → {_short(wanted)}"


_KEYS: Final = ("name", "mountPath", "uid")
_RECORDS: Final = ("/template", "/inputs")  # annotations that repeat what other fields show


def _short(value: object) -> str:
    text = "(not set)" if value is None else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
