"""Reads a journal out of a workflow's history, and finds out why a session is stuck; runs no code of it."""
