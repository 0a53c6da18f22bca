"""The inbox: server-rendered pages of what waits for a person, and of each session."""
