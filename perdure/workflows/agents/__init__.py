"""The interpreter: runs the agents of one invocation over its plan."""
