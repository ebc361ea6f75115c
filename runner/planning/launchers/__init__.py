"""Launchers: each turns a plan into commands. Pure."""
