"""What both ends agree on: messages and files as types, names, limits (docs/formats.md).

The bottom of everything: standard library only, Python 3.8 and later, shipped to hosts in the node program's zip.
"""
