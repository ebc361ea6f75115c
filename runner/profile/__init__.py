"""The YAML profile: one file that describes the cluster and the job. All errors are reported together, with positions.

Imports nothing: if one thread imports the package and another one of its modules, one could see it half initialised.
"""
