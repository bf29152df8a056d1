"""From a request's fields to prompt tokens and sampling parameters.

Reading order: input_processor.py, chat_templates.py, sampling.py.
"""
