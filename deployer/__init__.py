"""deployer: turns an SGLang parallelism profile into a proven-live service on a GPU host."""

__version__ = "0.1.0"
