"""DivideMix (Li et al. 2020): two networks divide each other's samples, and learn from both divisions by MixMatch."""
