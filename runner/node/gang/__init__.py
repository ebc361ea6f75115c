"""How the supervisors of all hosts agree: one leads, the others follow, and a failure of one ends all."""
