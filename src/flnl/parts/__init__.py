"""General parts that any method may use."""
