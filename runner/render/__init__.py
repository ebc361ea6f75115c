"""Texts that both front ends show: states, plans, findings, the story of a run's end."""
