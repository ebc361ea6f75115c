"""Turns untrusted bytes into bounded values: JSON lines, records of the protocol, single values."""
