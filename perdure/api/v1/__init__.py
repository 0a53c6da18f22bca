"""Perdure's own routes, under `/v1`.

Here belongs what ADK has no route for.
"""
