"""Logs from elsewhere and to elsewhere: bare logs, export files, and how they are checked. Pure."""
