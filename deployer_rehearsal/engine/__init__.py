"""The stand-in for SGLang and for ``nvidia-smi`` on practice hosts.

This folder goes on ``sys.path`` of the host's engine interpreter, so that ``python -m sglang.launch_server`` finds the
stand-in. It uses the standard library only, and nothing of deployer but the flag tables that ship with it.
"""
