"""How a host is reached: one small protocol, spoken over SSH, in a sandbox or on this machine."""

from disttui.runner.transport.base import Connection, Connector, Prompts, RefusePrompts, Stream

__all__ = ["Connection", "Connector", "Prompts", "RefusePrompts", "Stream"]
