"""Telemetry of the machine, once a second, and the alarms derived from it."""
