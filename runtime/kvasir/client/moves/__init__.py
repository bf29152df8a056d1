"""Requests that another engine continues, because theirs is lost or drains.

Reading order: migration.py, resumes.py (which engine may continue a request), quarantine.py (requests whose steps
failed), hand_overs.py (engines that drain), kv_source.py (where their KV blocks are).
"""
