"""`doctor`: what may make a running service slower or worse than it could be.

`collect` looks at the service and its host once and returns `Evidence`; `checkup.examine` is pure and holds every
symptom against it. What the symptoms know is in `symptoms.toml`; the functions that look for them are in `serving`,
`scheduling`, `graphs` and `hardware`. Start with `symptom`.
"""
