"""Between HTTP and the engines: AsyncLLM (async_llm.py), its parts, and the frontend's end of the link."""
