"""The state of a session: its events and Perdure's own entries, packed, and folded in one place. Pure."""
