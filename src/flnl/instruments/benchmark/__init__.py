"""The benchmark: tasks, entries of methods with their scores, and the page that ranks them."""
