"""Faults on real hosts: whatever happens, the end is right, the words say why, no byte is lost, nothing is left."""
