"""What is known of SGLang: its flags by version, its running server, its log, and the rules about what goes wrong.

``flags`` renders a profile as a command line, ``server`` reads what a running server reports, ``log`` reads its log,
and ``rules`` judges a profile. ``data`` holds the flag tables and the known failures.
"""
