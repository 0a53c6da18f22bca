"""What crosses the border of a process: arguments and results of updates, signals, queries, activities. Pure."""
