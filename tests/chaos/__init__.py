"""Chaos: changes that are disturbed at every moment, each followed by what must hold afterwards (`make chaos`)."""
