"""Messages between processes: arguments and results of updates, signals, queries and activities. Pure.

Here belong their names, too. Both stand in histories, so they are only added to.
"""
