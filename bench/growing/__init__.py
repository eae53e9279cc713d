"""Subjects that grow, and what their growth is known to be: ``./dev bench growth``."""
