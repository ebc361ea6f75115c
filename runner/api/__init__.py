"""What disttui does, as functions that print nothing; `disttui` itself names the public ones (docs/api.md)."""
