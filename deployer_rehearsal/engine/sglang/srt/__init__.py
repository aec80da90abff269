"""Where SGLang keeps its runtime: here only what is asked for without starting a server."""
