"""The `disttui` command, also as `python -m disttui`."""

from disttui.runner.cli import main

if __name__ == "__main__":
    main()
