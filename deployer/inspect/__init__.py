"""Everything that looks and changes nothing that serves.

A module for each command: `status`, `history` (and `logs`), `check`, `diagnose` (with `log_file`), `compare`, `learn`,
the package `doctor`; and `measure`, which puts load on what runs. Each returns records, whose ``as_json`` is the
command's document. `every` does one of them for all services side by side. Start with `status`.
"""
