"""Sends a folder of this machine to hosts: selects its files and transfers them."""
