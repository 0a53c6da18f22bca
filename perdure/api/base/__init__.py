"""The base of all routes: settings, middleware, bodies, errors, streams, and the apps that are served.

Here belongs what routes of more than one kind need.
"""
