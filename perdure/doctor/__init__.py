"""Checks of what a machine needs to run agents: its packages, its credentials, its Temporal, its workers."""
