"""Health, readiness, metrics, version."""
