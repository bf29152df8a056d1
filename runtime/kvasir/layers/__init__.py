"""The layers that models are made of.

Reading order: layout.py, parameter.py, linear_shape.py, linear_method.py, linear.py, embedding.py, norm.py,
activation.py, mlp.py, moe/, rotary.py, kv.py, attention.py, quantised/, adapters/.
"""
