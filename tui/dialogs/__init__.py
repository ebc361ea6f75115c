"""What comes up over a screen: questions, lists, help, errors."""
