"""Asking a host's own SGLang: the program that runs there, and what its answers mean. Pure but for the program."""
