"""Encryption of what Temporal stores: the codec, its keys, and the server that decodes for Temporal's UI.

Here belongs what holds a key.
"""
