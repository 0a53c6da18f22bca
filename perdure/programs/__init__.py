"""Programs that build a `Runner` of google.adk's: durable by one changed import, or by none.

Needs the extra `adk`. A worker for the program's agents runs in the program itself.
"""
