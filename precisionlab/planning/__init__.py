"""Changing a program's formats while it runs, and searching for the fewest changes that make it safe."""
