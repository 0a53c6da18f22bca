"""ADK's StoryFlowAgent: a custom agent that keeps a checkpoint after each of its steps."""
