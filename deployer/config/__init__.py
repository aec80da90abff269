"""What the operator writes: inventory, profiles, settings of the tool, secrets. Start with `inventory` and `profile`.

All of it is typed and closed: an unknown key is an error that names its place. `problems` turns everything that is
wrong with a file into one message.
"""
