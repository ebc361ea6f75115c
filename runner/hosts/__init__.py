"""Hosts: their discovery, the channel to each, and their facts."""
