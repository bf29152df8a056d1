"""Descriptions of formats: data for the state machine and the grammars. Read descriptions.py first."""
