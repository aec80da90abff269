"""The vocabulary: what deployer reads, keeps and shows, as frozen dataclasses. Start with `release`.

`codec` turns JSON into records and back, once, at the seam to a host or a file; past the seam nothing is an untyped
dict. `host` and `hardware` hold what a host is, `answers` and `events` what its operations return and report,
`release`, `bench`, `verdict` and `failure` what is kept with a release, `endpoint` where a server is reached.
Records import nothing of the rest of deployer.
"""
