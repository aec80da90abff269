"""A stand-in for SGLang, for practising deployments on machines without a GPU."""
