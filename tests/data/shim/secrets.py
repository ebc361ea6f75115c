OWNER = "the user, too"
