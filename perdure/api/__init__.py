"""The HTTP API: ADK's routes, Perdure's own, and the inbox. Needs the extra `api` (FastAPI and uvicorn).

Here stands `app`, which puts them together; a route belongs into `adk`, `v1` or `pages`.
"""
