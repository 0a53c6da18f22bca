"""The workflows: a session's, and the small ones beside it that hold shared state and claims.

Here belongs what waits, schedules, or draws ids and times; what can be a pure function stands in `rules`.
"""
