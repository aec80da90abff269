"""How quickly the command line answers, beside Ansible and pyinfra: `make bench-cli`."""
