"""all-MiniLM-L6-v2 is served as it is: the vectors of transformers, and the openai client reads them."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import openai
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from service.running import running
from weights.real_models import MINILM

TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "Kubernetes schedules pods onto nodes, and " * 20,
    "a",
]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        running("serve", str(MINILM.path), "--served-model-name", "mini", "--port", "0") as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=300) as client,
    ):
        yield client


def reference() -> npt.NDArray[np.float32]:
    tokenizer = AutoTokenizer.from_pretrained(MINILM.path)
    model = AutoModel.from_pretrained(MINILM.path, dtype=torch.float32).eval()
    vectors = []
    for text in TEXTS:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=-1))
    return torch.stack(vectors).numpy()


def test_vectors_equal_those_of_transformers(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="mini", input=TEXTS)
    found = np.array([each.embedding for each in answer.data], np.float32)
    expected = reference()
    assert ((found * expected).sum(1) > 0.99999).all()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_similarities_are_the_published_ones(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="mini", input=TEXTS[:3])
    found = np.array([each.embedding for each in answer.data])
    # The first example of sentence-transformers' documentation.
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(found @ found.T, published, atol=1e-3)
