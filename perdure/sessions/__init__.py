"""The client's side of sessions: asks, follows, lists, starts, brings back and deletes their workflows.

Here belongs what needs a connection to Temporal, and no code of an app.
"""
