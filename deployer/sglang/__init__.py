"""Everything known about SGLang, pure: text and data in, records out.

`flags` are its arguments by version, `server` is what a running one says of itself, `log` reads its log, `rules` know
what goes wrong. Start with `rules`.
"""
