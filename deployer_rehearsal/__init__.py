"""Practice hosts on the operator's own machine: real systemd and sshd, a stand-in engine, no GPU.

`hosts` boots and ends them; `commands` is `deployer rehearse`; `engine` is what they serve with.
"""
