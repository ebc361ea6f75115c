"""Connections to hosts: one small protocol for SSH, the sandbox and this machine."""

from disttui.runner.transport.base import Connection, Connector, Prompts, RefusePrompts, Stream

__all__ = ["Connection", "Connector", "Prompts", "RefusePrompts", "Stream"]
