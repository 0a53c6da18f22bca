"""Runs google.adk's own agents: compiles them into a plan, and does their steps by ADK's own code.

Needs the extra `adk`. Nothing outside of this folder imports google.adk.
"""
