"""Diagnoses what failed, hangs or is slow in a run, from its records. Pure."""
