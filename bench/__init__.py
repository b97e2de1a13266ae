"""How fast a round is: our executors, a hand-written loop and other frameworks, side by side in one run."""
