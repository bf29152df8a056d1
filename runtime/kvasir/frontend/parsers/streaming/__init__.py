"""Reads an output piece by piece, by the description of its formats.

Reading order: reader.py, json_mender.py, emitter.py, call_bodies.py, tool_section.py, harmony.py, output_parser.py.
"""
