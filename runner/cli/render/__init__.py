"""Texts for people: tables, plans, the live view of the command line, the story of how a run ended."""
