"""What a server says of itself: its arguments in effect (`info`), what it computed (`effect`), and what the host's own
SGLang answers when it is asked about a command line (`answers`).
"""
