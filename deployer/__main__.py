"""`python -m deployer` is the `deployer` command."""

from deployer.cli.main import main

main()
