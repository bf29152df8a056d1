"""Models that make vectors and scores: vector_head.py, score_head.py, pooling_model.py,
encoder.py, encoder_family.py.
"""
