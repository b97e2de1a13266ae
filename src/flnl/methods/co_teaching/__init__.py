"""Co-teaching and Co-teaching+: two networks teach each other by samples of small loss."""
