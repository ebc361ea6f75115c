"""Texts that both front ends show: states, plans, findings, and how runs end."""
