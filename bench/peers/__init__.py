"""Other frameworks, each in a process of its own, in the environment ``bench/.venv-peers``."""
