"""Observes the ranks of one attempt from outside: their logs, metrics, memory and deaths."""
