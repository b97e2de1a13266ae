"""Loss correction by an estimated transition matrix: forward correction (LC) and T-revision."""
