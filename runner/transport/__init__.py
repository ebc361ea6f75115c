"""How a host is reached: one small protocol, spoken over SSH, in a sandbox or on this machine."""

from runner.transport.base import Address, Connection, Connector, Prompts, RefusePrompts, Stream

__all__ = ["Address", "Connection", "Connector", "Prompts", "RefusePrompts", "Stream"]
