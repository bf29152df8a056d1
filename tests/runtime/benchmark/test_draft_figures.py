from kvasir.benchmark.figures import draft_counts, draft_figures

TEXT = """
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="10"} 2.0
vllm:generation_tokens_total{engine="0",model_name="m"} 99.0
"""


def test_draft_counts_sum_engines_and_keep_places_apart() -> None:
    assert draft_counts(TEXT) == {"drafts": 4, "draft_tokens": 10, "accepted_tokens": 5, "0": 3, "10": 2}
    assert draft_counts("") == {}


def test_draft_figures_are_those_in_between() -> None:
    after = draft_counts(TEXT)
    figures = draft_figures({"drafts": 2, "draft_tokens": 2, "accepted_tokens": 1, "0": 1}, after)
    assert figures is not None
    assert (figures["drafts"], figures["acceptance_rate"], figures["acceptance_length"]) == (2, 0.5, 3.0)
    assert figures["per_position_acceptance_rates"] == [1.0, 1.0]
    assert draft_figures(after, after) is None
    assert draft_figures({}, {}) is None
