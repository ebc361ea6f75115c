"""Facts and a profile become what every host gets and runs, each value with its reason. Pure."""
