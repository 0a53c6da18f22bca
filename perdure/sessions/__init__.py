"""A session's workflow from outside: asks, follows, lists, starts, brings back and deletes it."""
