"""Constraints in the real engine process on demo://, over a real link."""

import signal

from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.link.protocol import FinishReason, RefusalKind
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.engine.engine_under_test import Frontend, ended, run_engine
from runtime.engine.test_engine_process import REAL
from runtime.executor.processes import children_of, is_alive


async def test_engine_process_enforces_grammars_and_refuses_bad_ones(frontend: Frontend, address: str) -> None:
    digits = OutputConstraint(Grammar(GrammarKind.REGEX, "[0-9]{7}"))
    bad = OutputConstraint(Grammar(GrammarKind.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}'))
    async with run_engine(*REAL, "demo://", "--link", address, "--kv-cache-memory-bytes", "16Mi") as process:
        engine = await frontend.ready()
        frontend.ask(engine, "digits", 50, constraint=digits)
        frontend.ask(engine, "bad", 50, constraint=bad)
        frontend.ask(engine, "plain", 5)
        assert (await frontend.answer("digits")).finish_reason is FinishReason.STOP
        tokens = [token for output in frontend.received("digits") for token in output.token_ids]
        text = load_tokenizer(fetch("demo://", weights=False)).decode(tokens)
        assert len(text) == 7
        assert text.isdigit()
        refused = await frontend.answer("bad")
        assert refused.refusal is RefusalKind.INVALID
        assert "uniqueItems" in refused.error
        assert (await frontend.answer("plain")).finish_reason is FinishReason.LENGTH
        compiler = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        code, _ = await ended(process)
        assert code == 0
        assert not any(map(is_alive, compiler))
