"""What the frontend reports of itself: metrics, the log line of each request, and the load every ten seconds."""
