"""Models and methods judged against the truth, which nothing else reads."""
