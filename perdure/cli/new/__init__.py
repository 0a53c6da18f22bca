"""`perdure new`: makes a folder with agents that run at once, offline, and are the reader's to change.

Here belongs what stands in that folder.
"""
