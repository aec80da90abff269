"""What people see. Functions of records; nothing here asks a host.

On a terminal: `terminal` and `launch_view` while a change runs, the modules named ``..._view`` and `bench_table` for
results. As a file: `page` (with `charts` and `interactive`) and `files`. Start with `service_view`.
"""
