"""Token streaming: carries what models are writing to those who follow a session. Never stored.

Here belong the hub of a process, and the connection between two of them.
"""
