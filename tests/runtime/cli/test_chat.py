import re
import ssl
import sys
from collections.abc import Iterator

import pexpect
import pytest
import trustme

from kvasir.cli import main
from kvasir.cli.api_client import ApiServer
from kvasir.cli.conversation import Conversation, Display
from runtime.cli.fake_server import FakeServer, fake_server, sse


@pytest.fixture
def server() -> Iterator[FakeServer]:
    answer = sse({"choices": [{"delta": {"content": "Yes."}}]})
    with fake_server({"/v1/chat/completions": (200, answer)}) as server:
        yield server


@pytest.mark.parametrize("form", ["http://{}", "http://{}/", "http://{}/v1", "http://{}/v1/", "{}", "{}/v1"])
def test_every_way_to_write_the_address_finds_the_server(
    form: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", form.format(server.address), "-m", "Is it you?"]) == 0
    assert capfd.readouterr().out == "Yes.\n"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "http://[::1 is not a URL: "),
        ("ftp://x", "ftp://x is not the URL of a server: give http://HOST:PORT"),
        ("http://", "http:// is not the URL of a server: give http://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(url: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["chat", url, "-m", "x"]) == 2
    assert capfd.readouterr().err.startswith(f"kvasir chat: {message}")


def test_an_untrusted_certificate_is_explained(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    assert main.main(["chat", f"https://{server.address}", "-m", "x"]) == 1
    assert "set SSL_CERT_FILE to the PEM file" in capfd.readouterr().err


def test_a_key_beyond_ascii_is_sent_in_utf_8(server: FakeServer) -> None:
    assert main.main(["chat", server.address, "-m", "x", "--api-key", "schlüssel"]) == 0
    assert set(server.keys) == {"Bearer schlüssel".encode()}


def test_what_is_left_out_is_left_to_the_server(server: FakeServer) -> None:
    assert main.main(["chat", server.address, "-m", "x"]) == 0
    assert main.main(["chat", server.address, "-m", "x", "--system", "s", "--seed", "3", "--stop", "a"]) == 0
    user = {"role": "user", "content": "x"}
    assert server.bodies == [
        {"model": "m", "messages": [user], "stream": True},
        {
            "model": "m",
            "messages": [{"role": "system", "content": "s"}, user],
            "seed": 3,
            "stop": ["a"],
            "stream": True,
        },
    ]


def chunk(**delta: str) -> dict[str, object]:
    return {"choices": [{"delta": delta}]}


REASONED = (chunk(reasoning_content="Let me"), chunk(reasoning=" see."), chunk(content="Yes"), chunk(content="."))


def test_reasoning_is_shown_apart_from_the_answer(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/chat/completions"] = (200, sse(*REASONED))
    assert main.main(["chat", server.address, "-m", "x"]) == 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("Yes.\n", "<think>\nLet me see.\n</think>\n")
    assert main.main(["chat", server.address, "-m", "x", "--hide-reasoning"]) == 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("Yes.\n", "")


def test_reasoning_is_dim_on_a_terminal(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    display = Display(has_colour=True)
    server.answers["/v1/chat/completions"] = (200, sse(*REASONED))
    with ApiServer(server.url, None) as api:
        Conversation(api, "m", None, {}, display).ask("x")
    assert capfd.readouterr().out == "\x1b[2mLet me see.\x1b[0m\n\nYes.\n"


def test_an_answer_of_reasoning_alone_ends_its_marks(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/chat/completions"] = (200, sse(*REASONED[:2]))
    assert main.main(["chat", server.address, "-m", "x"]) == 0
    assert capfd.readouterr().err == "<think>\nLet me see.\n</think>\n"


@pytest.mark.parametrize(
    ("usage", "line"),
    [({"usage": {"completion_tokens": 9}, "choices": []}, r"\[9 tokens, "), (None, r"\[4 tokens, ")],
)
def test_stats_count_the_tokens_of_an_answer(
    usage: dict[str, object] | None, line: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    events = (*REASONED, usage) if usage else REASONED
    server.answers["/v1/chat/completions"] = (200, sse(*events))
    assert main.main(["chat", server.address, "-m", "x", "--stats", "--hide-reasoning"]) == 0
    assert re.fullmatch(line + r"the first after \d+\.\d\d s, [\d.]+ tokens/s\]\n", capfd.readouterr().err)
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "stream",
    [
        b'data:{"choices":[{"delta":{"content":"Yes."}}]}\n\ndata:[DONE]\n\n',
        b'data: {"choices":[{"delta":\ndata: {"content":"Yes."}}]}\n\ndata: [DONE]\n\n',
        b': held\r\n\r\ndata: {"choices":[{"delta":{"content":"Yes."}}]}\r\n\r\ndata: [DONE]\r\n\r\n',
        b'data: {"choices":[{"delta":{"content":"Yes."}}]}\r\rdata: [DONE]\r\r',
        b'event: x\nid: 1\ndata: {"choices":[{"delta":{"content":"Yes."}}]}\n\ndata: [DONE]\n\n',
        b'data: {"choices":[{"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\n',
    ],
)
def test_every_valid_stream_of_events_is_read(
    stream: bytes, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers["/v1/chat/completions"] = (200, stream)
    assert main.main(["chat", server.address, "-m", "x"]) == 0
    assert capfd.readouterr().out == "Yes.\n"


def test_a_stream_that_is_cut_off_is_a_failure(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/chat/completions"] = (200, sse(chunk(content="Ye"), done=False))
    assert main.main(["chat", server.address, "-m", "x"]) == 1
    assert "closed the stream before the answer was complete" in capfd.readouterr().err


def test_an_answer_that_is_not_a_stream_is_named(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers["/v1/chat/completions"] = (200, b"{}")
    assert main.main(["chat", server.address, "-m", "x"]) == 1
    assert "does not stream its answer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"), [((), "needs an API key: give it with"), (("--api-key", "k"), "does not accept this")]
)
def test_a_refused_key_is_explained_by_the_option(
    options: tuple[str, ...], message: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers["/v1/models"] = (401, b'{"error": {"message": "send the header Authorization"}}')
    assert main.main(["chat", server.address, "-m", "x", *options]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "--api-key or the variable KVASIR_API_KEY" in error


@pytest.mark.parametrize("message", ["", " \n"])
def test_an_empty_message_is_refused(message: str, server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["chat", server.address, "-m", message]) == 2
    assert "the message is empty" in capfd.readouterr().err
    assert server.bodies == []


def test_options_of_vllm_chat_are_aliases(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--url", f"http://{server.address}/v1", "--model-name", "n", "--system-prompt", "s", "-q", "x"]
    assert main.main(["chat", *options]) == 0
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]
    assert server.bodies == [{"model": "n", "messages": messages, "stream": True}]


class Typing:
    """`kvasir chat` on a terminal."""

    def __init__(self, server: FakeServer) -> None:
        command = ["-m", "kvasir.cli.main", "chat", server.address]
        self._child = pexpect.spawn(sys.executable, command, encoding="utf-8", timeout=30, echo=False)
        self.read()

    def read(self) -> str:
        self._child.expect_exact("\n> ")
        return str(self._child.before)

    def type(self, *lines: str) -> str:
        for line in lines:
            self._child.sendline(line)
        return self.read()

    def end(self) -> int:
        self._child.sendline("/quit")
        self._child.expect(pexpect.EOF)
        self._child.close()
        return int(self._child.exitstatus or 0)


def test_a_chat_has_commands_and_messages_of_lines(server: FakeServer) -> None:
    chat = Typing(server)
    assert "/system TEXT" in chat.type("/help")
    assert "/hlep is not a command: /help lists them" in chat.type("/hlep me")
    assert server.bodies == []
    assert "tokens/s" in (answer := chat.type("hello")) or "1 token, the first after" in answer
    chat.type("/system be brief")
    chat.type('"""one', "  two", 'three"""')
    chat.type("/etc/hosts: which file is it?")
    chat.type("/reset")
    chat.type("//help")
    assert chat.end() == 0
    system = {"role": "system", "content": "be brief"}
    asked = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert asked == [
        ["hello"],
        ["be brief", "one\n  two\nthree"],
        ["be brief", "one\n  two\nthree", "Yes.", "/etc/hosts: which file is it?"],
        ["be brief", "/help"],
    ]
    assert server.bodies[1]["messages"][0] == system
