"""The commands that move an invocation: `run`, `respond`, `resume`, `stop`."""
