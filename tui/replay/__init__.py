"""A finished run, played from its mirror."""
