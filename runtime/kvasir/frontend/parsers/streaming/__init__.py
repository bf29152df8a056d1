"""Reads an output piece by piece, by the description of its formats.

Reading order: reader.py (the text so far), json_words.py, json_mender.py, emitter.py (events), call_bodies.py (one
call), tool_section.py (a section of calls), harmony.py, output_parser.py (the whole output).
"""
