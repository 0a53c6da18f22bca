"""The views of a session: pages of events, the ledger of calls, explanations, next steps. Pure.

Here belongs what every reader is told; what a route or a command makes of it stands there.
"""
