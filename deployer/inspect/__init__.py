"""What only looks: `status`, `history`, `diagnose`, `compare`, `doctor`; and `measure`, which puts load on what runs.

Nothing here changes what serves. Start with `status`.
"""
