"""Benchmarks: ratios, each taken in one run on one machine."""
