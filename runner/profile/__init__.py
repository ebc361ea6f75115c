"""The YAML profile: one file describes cluster and job. Checked as a whole, every error with its place.

Imports nothing: of two threads that import a package and one of its modules, one could see the package half made.
"""
