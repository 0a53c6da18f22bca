"""A2A: the protocol by which agents ask agents. A task is an invocation, read from its session's log.

https://a2a-protocol.org
"""
