"""Endpoints of models that make vectors and scores: request.py (bodies), answer.py, pooled.py,
vector_forms.py, embeddings.py, cohere_embed.py, pair_scores.py.
"""
