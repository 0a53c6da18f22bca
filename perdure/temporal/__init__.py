"""Adapters to Temporal's SDK and server: payloads, and workarounds for how these behave.

Here belongs what exists for that reason alone; a workaround names the upstream issue nearest to it, if there is one.
"""
