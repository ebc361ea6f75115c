OWNER = "the user"
