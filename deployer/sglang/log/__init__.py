"""What an SGLang log says: its lines, launches, batches, tracebacks and causes of failure.

Start at `diagnosis.diagnose` (a log that is complete), `failures.classify` (a launch known to have failed),
`launch.LaunchLog` (a launch that is under way) or `batches.read_batches`. Nothing here imports the rest of deployer.
"""
