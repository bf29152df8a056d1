"""The layers that models are made of.

Reading order: parameter.py, linear.py, embedding.py, norm.py, activation.py, mlp.py, rotary.py, kv.py,
attention.py.
"""
