"""The code that every rank starts with, before it becomes the user's script."""
