"""The routes of ADK's own API.

Here belongs what ADK's clients call: names, fields and statuses are ADK's.
"""
