"""Drafters guess tokens that follow a request's known ones; a step verifies them (docs/design/step.md).

Reading order: drafter.py, make_drafter.py, step_drafts.py.
"""
