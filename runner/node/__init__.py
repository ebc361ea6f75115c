"""The part that runs on hosts: standard library only, Python 3.8 and later, shipped as one zip (`_disttui`)."""
