"""The terminal and the process around the app: clipboard, pager, crash, interpreter."""
