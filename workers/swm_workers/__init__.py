"""The environment side of swm_async: what runs inside a worker process.

Imports the standard library, numpy, gymnasium and cloudpickle, and never ``swm_async``.
"""
