"""Event logs from and to elsewhere: bare logs, export files, and their checks. Pure.

Here belongs what turns a log into a journal, or a journal into a file.
"""
