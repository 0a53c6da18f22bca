"""The journal: a session's events and Perdure's own entries, packed, and folded in one place. Pure.

Here belongs what stands in a journal, and what follows from it by folding alone.
"""
