import threading

import pytest

from kvasir.executor.nodes import member_answers
from kvasir.executor.nodes.member_answers import Descriptions
from kvasir.executor.nodes.node_messages import Describe


def test_late_answer_does_not_count_for_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_answers, "_DESCRIBE_SECONDS", 0.0)
    monkeypatch.setattr(member_answers, "STACK_SECONDS", 0.0)
    asked: list[Describe] = []
    descriptions = Descriptions(lambda node, question: asked.append(question))
    assert descriptions.ask({1: [2, 3]}) == "node 1 with the workers 2, 3 does not answer"
    descriptions.put(asked[0].question, "node 1: late")
    assert descriptions.ask({2: [4]}) == "node 2 with the workers 4 does not answer"


def test_member_has_the_time_for_the_stacks_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_answers, "_DESCRIBE_SECONDS", 0.0)
    monkeypatch.setattr(member_answers, "STACK_SECONDS", 10.0)

    def answer(node: int, question: Describe) -> None:
        text = f"node {node}: {question.ranks}"
        threading.Timer(0.3 / node, descriptions.put, [question.question, text]).start()

    descriptions = Descriptions(answer)
    assert descriptions.ask({1: [2, 3], 2: [4]}) == "node 1: [2, 3]; node 2: [4]"
