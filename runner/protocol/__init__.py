"""What both ends share: types of messages and files, names, limits (docs/formats.md).

The lowest layer: standard library only, Python 3.8 and later, shipped to hosts in the node program's zip.
"""
