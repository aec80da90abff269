"""Load clients side by side, against a server whose send times are known (`docs/performance.md`)."""
