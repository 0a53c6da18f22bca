"""What answers an open call: its declared type, the fields that ask for it, and whether an answer is of it. Pure.

The inbox, the commands and the conversation in a terminal ask by the same rules.
"""
