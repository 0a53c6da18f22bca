"""The plan: an app compiled to a tree of plain data with a digest, to which each invocation is pinned.

Here belongs what a workflow must know of an app without its code.
"""
