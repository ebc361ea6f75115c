"""The node program's part of `disttui check`."""
