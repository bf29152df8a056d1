"""Disturb a service under load, and compare each answer with that of an undisturbed run. Begin with
chaos_run.py."""
