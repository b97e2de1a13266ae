"""SELFIE: samples of small loss, and samples that are always predicted alike, with this prediction as label."""
