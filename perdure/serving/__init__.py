"""Parts of processes that serve: HTTP, probes, the event loop, the development server.

Here belongs what the API, workers and the codec server have in common.
"""
