"""The one door to everything that disttui does: for the command line, the app, and scripts."""
