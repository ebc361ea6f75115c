"""Translates files of other launchers to profiles, and profiles to files of other launchers. No I/O."""
