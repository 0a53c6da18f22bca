"""The HTTP API: ADK's REST surface over Perdure's sessions. Needs the extra `api` (FastAPI and uvicorn)."""
