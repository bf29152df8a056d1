"""Metrics, traces, the log line of each request, and the load every ten seconds."""
