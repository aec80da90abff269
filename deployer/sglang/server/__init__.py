"""What SGLang's server reports: `info` and `effect` of a running one, `answers` about arguments before it starts."""
