"""Requests that another engine continues, because theirs is lost or drains.

Reading order: migration.py, resumes.py, quarantine.py, hand_overs.py.
"""
