"""HTTP, command line, settings, wiring and jobs: the only package that knows the environment, the clock and HTTP."""
