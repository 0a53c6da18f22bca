"""The rules of a session: what it takes and refuses, and what follows from answers (SEMANTICS.md). Pure.

Here belongs a decision that a workflow, and whoever reads its history, must make alike.
"""
