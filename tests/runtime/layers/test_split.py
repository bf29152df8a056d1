import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kvasir.layers.embedding import VocabEmbedding
from kvasir.layers.layout import WHOLE, Layout, Split
from kvasir.layers.linear import ColumnLinear, RowLinear, VocabHead
from kvasir.layers.linear_method import PlainMethod, unquantised_method
from kvasir.layers.parameter import Placement, new_parameter, weight_loader_of
from kvasir.parallel.group import Group
from kvasir.parallel.parallel_state import ParallelState
from runtime.parallel.thread_group import ThreadGroup, run_ranks

CPU = torch.device("cpu")
FLOAT32 = Placement(CPU, torch.float32)
RANKS = st.sampled_from([1, 2, 3, 4])
quick = settings(max_examples=40, deadline=None)


def on(group: Group) -> Placement:
    return Placement(CPU, torch.float32, ParallelState(group))


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fill(layer: nn.Module, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        parameter = layer.get_parameter(name)
        weight_loader_of(parameter)(parameter, tensor, WHOLE)


@given(ranks=RANKS, inputs=st.integers(1, 9), part=st.integers(1, 5), bias=st.booleans(), transposed=st.booleans())
@quick
def test_ranks_of_a_column_layer_compute_all_outputs(
    ranks: int, inputs: int, part: int, bias: bool, transposed: bool
) -> None:
    outputs = ranks * part
    weight, biases, x = random(outputs, inputs), random(outputs, seed=2), random(3, inputs, seed=3)

    def compute(group: ThreadGroup) -> Tensor:
        layer = ColumnLinear(inputs, outputs, bias=bias, placement=on(group), transposed=transposed)
        fill(layer, weight=weight.t() if transposed else weight, **{"bias": biases} if bias else {})
        result: Tensor = layer(x)
        return result

    whole = x @ weight.t() + (biases if bias else 0)
    assert torch.allclose(torch.cat(run_ranks(ranks, compute), dim=1), whole, atol=1e-5)


@given(ranks=RANKS, part=st.integers(1, 5), outputs=st.integers(1, 9), bias=st.booleans(), transposed=st.booleans())
@quick
def test_ranks_of_a_row_layer_add_up_and_add_the_bias_once(
    ranks: int, part: int, outputs: int, bias: bool, transposed: bool
) -> None:
    inputs = ranks * part
    weight, biases, x = random(outputs, inputs), random(outputs, seed=2), random(3, inputs, seed=3)

    def compute(group: ThreadGroup) -> Tensor:
        layer = RowLinear(inputs, outputs, bias=bias, placement=on(group), transposed=transposed)
        fill(layer, weight=weight.t() if transposed else weight, **{"bias": biases} if bias else {})
        result: Tensor = layer(x[:, part * group.rank : part * (group.rank + 1)])
        return result

    whole = x @ weight.t() + (biases if bias else 0)
    for result in run_ranks(ranks, compute):
        assert torch.allclose(result, whole, atol=1e-5)


@given(ranks=RANKS, vocab=st.integers(1, 21), bias=st.booleans(), tied=st.booleans())
@quick
def test_a_split_vocabulary_embeds_and_predicts_like_a_whole_one(
    ranks: int, vocab: int, bias: bool, tied: bool
) -> None:
    table, biases = random(vocab, 4), random(vocab, seed=2)
    head_weight = table if tied else random(vocab, 4, seed=5)
    ids = torch.arange(vocab).repeat(2)

    def compute(group: ThreadGroup) -> tuple[Tensor, Tensor]:
        embedding = VocabEmbedding(vocab, 4, on(group))
        fill(embedding, weight=table)
        head = VocabHead(4, vocab, bias=bias, placement=on(group), tied=embedding.weight if tied else None)
        if not tied:
            fill(head, weight=head_weight)
        if bias:
            fill(head, bias=biases)
        vectors = embedding(ids)
        return vectors, head(vectors)

    for vectors, logits in run_ranks(ranks, compute):
        assert torch.equal(vectors, table[ids])
        assert logits.shape == (2 * vocab, vocab)
        assert torch.allclose(logits, table[ids] @ head_weight.t() + (biases if bias else 0), atol=1e-5)


@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    group_size=st.sampled_from([1, 2, 3]),
    fused=st.booleans(),
    bias=st.booleans(),
)
@quick
def test_each_rank_has_its_query_heads_and_their_kv_heads(
    ranks: int, kv_heads: int, group_size: int, fused: bool, bias: bool
) -> None:
    dim = 2
    heads = group_size * max(ranks, kv_heads)
    sizes = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    tensors = {name: random(size, 5, seed=size + len(name)) for name, size in sizes.items()}
    copies = max(1, ranks // kv_heads)

    def rows(group: ThreadGroup) -> list[Tensor]:
        layer = ColumnLinear(5, sizes, bias=bias, placement=on(group), copies={"k": copies, "v": copies})
        for name, parameter in layer.named_parameters():
            load = weight_loader_of(parameter)
            shards = {shard: tensor if name == "weight" else tensor[:, 0] for shard, tensor in tensors.items()}
            for shard, tensor in ({WHOLE: torch.cat(list(shards.values()))} if fused else shards).items():
                load(parameter, tensor, shard)
            assert not load.missing
        if layer.bias is not None:
            assert torch.equal(layer.bias, layer.weight[:, 0])
        own_kv = max(1, kv_heads // ranks)
        return list(layer.weight.view(-1, dim, 5).split([heads // ranks, own_kv, own_kv]))

    for rank, (q, k, v) in enumerate(run_ranks(ranks, rows)):
        for place, head in enumerate(q):
            number = rank * (heads // ranks) + place
            kv_number = number // (heads // kv_heads)
            kv_place = place // (len(q) // len(k))  # as attention groups the heads that it is given
            assert torch.equal(head, tensors["q"].view(heads, dim, 5)[number])
            assert torch.equal(k[kv_place], tensors["k"].view(kv_heads, dim, 5)[kv_number])
            assert torch.equal(v[kv_place], tensors["v"].view(kv_heads, dim, 5)[kv_number])


def test_padding_behind_a_dimension_is_zero() -> None:
    parameter = new_parameter(5, 2, placement=FLOAT32, split=Split(0, 1, 3))
    last = new_parameter(4, 2, placement=FLOAT32, split=Split(0, 2, 3))
    for each, rows in ((parameter, 5), (last, 4)):
        each.data.fill_(torch.nan)
        weight_loader_of(each)(each, torch.arange(2.0 * rows).view(rows, 2), WHOLE)
    assert parameter.tolist() == [[4, 5], [6, 7]]
    assert last.tolist() == [[0, 0], [0, 0]]


def test_a_layout_reads_only_its_own_part() -> None:
    layout = Layout((8, 6), {"a": 2, "b": 6}, Split(0, 1, 2))
    assert layout.local_shape == (4, 6)
    whole = slice(0, 6)
    b = (slice(1, 4),)
    assert list(layout.places(WHOLE)) == [((slice(1, 2), whole), (slice(0, 1),)), ((slice(5, 8), whole), b)]
    assert list(layout.places("b")) == [((slice(3, 6), whole), b)]
    columns = Layout((8, 6), None, Split(1, 1, 3))
    assert columns.local_shape == (8, 2)
    assert list(columns.places(WHOLE)) == [((slice(0, 8), slice(2, 4)), (slice(0, 8),))]


def test_a_layout_of_groups_cuts_shards_at_their_ends() -> None:
    """Two groups of 4 + 2 + 2 rows (GPT-NeoX's and Falcon's q, k and v), and a rank that starts within a group."""
    source = torch.arange(16.0)
    shards = {"q": 8, "k": 4, "v": 4}
    for size, rank, rows in (
        (1, 0, [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]),
        (2, 1, [8, 9, 10, 11, 12, 13, 14, 15]),
        (4, 1, [2, 3, 5, 7]),
    ):
        layout = Layout((16,), shards, Split(0, rank, size), groups=2)
        filled = torch.full(layout.local_shape, torch.nan)
        for part, place in layout.places(WHOLE):
            filled[place] = source[part]
        assert filled.tolist() == rows
    assert list(Layout((16,), shards, groups=2).places("k")) == [((slice(0, 4),), (slice(8, 12),))]


def test_a_torch_without_the_private_functions_does_not_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(CPU, torch.bfloat16)
    monkeypatch.setattr(torch._C, "_has_mkldnn", True)
    monkeypatch.setattr(torch.ops, "mkldnn", type("Mkldnn", (), {"_is_mkldnn_bf16_supported": lambda: True}))
    assert type(unquantised_method(placement)) is PlainMethod
