"""Compiles an app into its plan, and finds the code behind the names in a plan.

Here belongs every check of an agent tree, the determinism of custom agents included.
"""
