"""Send files of requests in OpenAI's batch format to a server. Begin with batch_run.py."""
