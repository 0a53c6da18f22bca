"""The interpreter: runs the agents of one invocation over its plan.

Here belongs the runner of each kind of agent, and what these share.
"""
