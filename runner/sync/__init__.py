"""Carries a folder of this machine to hosts: what belongs to it, and how it gets there."""
