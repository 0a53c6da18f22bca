"""The routes of ADK's own API.

Here belongs what ADK's clients call: names, fields and statuses are ADK's. What only its web page asks for is in
`programs/adk_page.py`, with the page.
"""
