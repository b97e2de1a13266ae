"""What a run leaves in its folder, and reading it back."""
