"""Tests of xcs, and the patterns and programs that the benchmarks use too."""
