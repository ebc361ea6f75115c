"""Telemetry of the machine, once a second, and the alarms that follow from it."""
