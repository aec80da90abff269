"""The load client: measures a server's streaming completions, beside the engine on the host or from here.

`client.run` is a whole run, `run.Run` its stages, `drive` and `stream` send the requests, `levels` and `stats` turn
them into the bench document, `workers` and `sampler` are further processes. The package travels as a zipapp
(`deployer.host.ship`) and runs on the engine's own Python: Python 3.9, httpx and the standard library, and nothing
else of deployer but `deployer.metrics`.
"""
