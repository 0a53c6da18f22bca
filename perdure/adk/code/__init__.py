"""Runs the code of custom agents and of graphs, which stays suspended from one step to the next."""
