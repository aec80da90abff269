"""The transaction: what `apply`, `rollback`, `resume` and `converge` do to a host. Start with `apply`.

`apply` leads to the recorded transition, `rollout` from there to a live release or back, `steps` are its parts;
`plan`, `preflight`, `validate`, `wait`, `verify` and `gating` are what the steps ask, `restore` is the way back.
"""
