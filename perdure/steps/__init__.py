"""The steps of an agent: what one model call or tool call does, without a word of Temporal.

Here belongs what needs no activity around it; heartbeats, timeouts and retries stand in `activities`.
"""
