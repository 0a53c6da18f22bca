"""Activities: all I/O that workflows need, done in the worker.

Here belongs Temporal's half of a step: heartbeats, sizes, errors, the cache of journals; the other is in `steps`.
"""
