"""`kvasir run-batch`: files of requests in OpenAI's batch format, sent to a server of the OpenAI API.

Reading order: batch_input.py (the lines of a file), batch_output.py (the answers that stand), batch_run.py (sends
the rest), delivery.py (one request with its retries).
"""
