"""Models that make vectors and scores: pooled_sequences.py, vector_head.py, score_head.py, pooling_model.py,
encoder.py, build_pooling.py.
"""
