"""Reads journals out of workflow histories, and finds out why a session is stuck.

Here belongs what needs a history alone: no code of a session is run, and no worker is asked.
"""
