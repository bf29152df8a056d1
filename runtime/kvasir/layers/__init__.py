"""The layers that models are made of.

Reading order: parameter.py, linear_method.py, linear.py, embedding.py, norm.py, activation.py, mlp.py, moe.py,
rotary.py, kv.py, attention.py.
"""
