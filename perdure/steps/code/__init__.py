"""Runs the code of custom agents, whoever's classes they are of: suspended from one step to the next.

A step runs the code until it waits for what the workflow is to run: sub-agents, and functions of `run_activity`. Where
it is not kept suspended, as after a restart, it runs from its top once more, and is given what there is as it comes to
it.
"""
