"""The page docs/vllm-options.md: every option of `vllm serve`, and what becomes of it."""

from collections.abc import Iterable, Mapping

from kvasir.cli import serve
from kvasir.config.vllm.given_options import vllm_options
from kvasir.config.vllm.verdicts import IGNORED, MAPPED, NEUTRAL, READ, REFUSED

_PAGE = """\
# Options of vLLM

Every option of `vllm serve` from vLLM {first} to {last}, and what `kvasir serve` does with it. Short names (`-tp`,
`-O3`), names with underscores, `--no-` forms and dotted fields (`--compilation-config.level 3`) are read too.
`kvasir frontend` and `kvasir engine` have the options of their part. `python -m tools.vllm_options table` writes
this page; [Moving from vLLM](moving-from-vllm.md) has commands side by side.

## Same name and meaning: {same_count}

{same}

## Read by the command line itself

| option | here |
|---|---|
{read}

## Renamed, accepted under both names

| vLLM | here |
|---|---|
{renamed}

## Accepted without effect: {ignored_count}

A line of the output names each with the text on the left.

| reason | options |
|---|---|
{ignored}

## Rejected: {rejected_count}

The command ends before it starts anything, with the text on the left. A value in brackets is accepted.

| reason | options |
|---|---|
{rejected}
"""


def page() -> str:
    own = serve.parser()._option_string_actions
    same = [name for name in vllm_options() if name in own]
    releases = [str(facts[key]) for facts in vllm_options().values() for key in ("first", "last") if key in facts]
    versions = sorted(releases, key=lambda version: [int(part) for part in version.split(".")])
    return _PAGE.format(
        first=versions[0],
        last=versions[-1],
        same=_names(same),
        same_count=len(same),
        read=_rows((f"`{name}`", text) for name, text in READ.items()),
        renamed=_rows((f"`{name}`", f"`{here}`") for name, here in MAPPED.items()),
        ignored=_by_reason(IGNORED),
        ignored_count=len(IGNORED),
        rejected=_by_reason(REFUSED),
        rejected_count=len(REFUSED),
    )


def _by_reason(verdicts: Mapping[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in verdicts.items():
        reasons.setdefault(reason, []).append(name)
    return _rows((reason.replace("|", "\\|"), _names(names)) for reason, names in reasons.items())


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"| {left} | {right} |" for left, right in rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`{_accepted(name)}" for name in sorted(names))


def _accepted(name: str) -> str:
    values = [value for value in NEUTRAL.get(name, ()) if value]
    return f" ({', '.join(values)})" if values else ""
