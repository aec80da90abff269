"""The smoke benchmark: load, statistics, gate."""
