"""Other frameworks, each in a separate process, in the environment ``bench/.venv-peers``."""
