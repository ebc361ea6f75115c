"""The screens of the app, each in a module that is imported when it is first opened."""
