"""LangChain: the chat model and the completion model of langchain-openai."""

from typing import Any

import httpx
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from clients.python.replaying import API_KEY, BASE_URL, LONG, MODEL, QUESTION, raised, run


def model(**options: Any) -> ChatOpenAI:
    options = {"max_tokens": 30, "max_retries": 0, "temperature": 0.5, **options}
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, **options)


def invoke() -> None:
    answer = model().invoke([SystemMessage("Answer in one sentence."), HumanMessage(QUESTION)])
    assert answer.content
    assert answer.response_metadata["model_name"] == MODEL
    assert answer.usage_metadata["total_tokens"] > 0


def stream() -> None:
    chunks = list(model(stream_usage=True).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks)
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


def second_turn() -> None:
    history: list[BaseMessage] = [HumanMessage(QUESTION)]
    for question in ("And a node?", "And a service?"):
        history += [model().invoke(history), HumanMessage(question, name="me")]
    assert len(history) == 5


def history_of_tools() -> None:
    call = {"name": "pods", "args": {"namespace": "web"}, "id": "call_1"}
    calls = AIMessage("", tool_calls=[call])
    history = [HumanMessage("How many pods run?"), calls, ToolMessage("3", tool_call_id="call_1")]
    assert model().invoke(history).content


def chain() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Answer in one sentence."), ("human", "{question}")])
    answers = (prompt | model() | StrOutputParser()).batch([{"question": QUESTION}, {"question": "And a node?"}])
    assert all(answers)


def overflow() -> None:
    raised(ContextOverflowError, lambda: model().invoke(LONG))
    raised(ContextOverflowError, lambda: model(max_tokens=10_000).invoke(QUESTION))
    raised(ContextOverflowError, lambda: list(model().stream(LONG)))


def token_counting() -> None:
    """Count with the model's tokenizer instead of one of OpenAI's."""

    def token_ids(text: str) -> list[int]:
        url = BASE_URL.removesuffix("/v1") + "/tokenize"
        answer = httpx.post(url, json={"prompt": text}, headers={"Authorization": f"Bearer {API_KEY}"})
        return list(answer.json()["tokens"])

    counting = model(custom_get_token_ids=token_ids)
    assert counting.get_num_tokens(QUESTION) == len(token_ids(QUESTION))
    history = [HumanMessage(QUESTION), AIMessage("A group."), HumanMessage("Why?")]
    kept = trim_messages(
        history,
        max_tokens=counting.get_num_tokens("Why?"),
        token_counter=lambda messages: sum(counting.get_num_tokens(str(each.content)) for each in messages),
    )
    assert kept == history[-1:]


def logprobs() -> None:
    answer = model(logprobs=True, top_logprobs=2, n=2, seed=1).invoke(QUESTION, stop=["###"])
    assert answer.response_metadata["logprobs"]["content"]


def completion() -> None:
    llm = OpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, max_tokens=10, max_retries=0)
    assert llm.invoke("A pod is")
    assert "".join(llm.stream("A pod is"))
    assert len(llm.batch(["A pod is", "A node is"])) == 2


async def asynchronous() -> None:
    assert (await model().ainvoke(QUESTION)).content
    assert [event async for event in model().astream_events(QUESTION)]


run(
    invoke,
    stream,
    second_turn,
    history_of_tools,
    chain,
    overflow,
    token_counting,
    logprobs,
    completion,
    asynchronous,
)
