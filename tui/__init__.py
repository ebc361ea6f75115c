"""The terminal app: screens and widgets over what `runner` knows."""

import os

# Before textual is imported. Its frames come one to two periods after the last: at 60 Hz a key that follows
# a line of the log waits for up to 33 ms.
os.environ.setdefault("TEXTUAL_FPS", "120")
