"""A stand-in for SGLang, to practise deployments on machines without a GPU."""
