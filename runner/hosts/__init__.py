"""Hosts: where they come from, the channel to each, what each has."""
