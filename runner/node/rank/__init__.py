"""What every rank starts as, before it becomes the user's script."""
