"""The inbox and the chat: server-rendered pages of the calls that wait for a person, and of each session.

Here belongs what is shown in a browser, and the forms that come back from there.
"""
