"""Checks of what a machine needs to run agents: its packages, its credentials, its Temporal, its workers.

Here belong the checks; what the command prints stands in `cli`.
"""
