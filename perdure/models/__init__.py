"""Models: the interface, the registry of names, and the models that come with Perdure.

Here belongs a provider of models, with its errors and whether they are retried.
"""
