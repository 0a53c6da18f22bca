"""Authentication and access: credentials, sign-in, and the one place that decides what a request may touch.

Here belongs what answers who sends a request, and what they may do.
"""
