"""What the frontend reports of itself: metrics and the log line of each request."""
