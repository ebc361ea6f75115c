"""What the machine does, once a second, and what of it calls for somebody."""
