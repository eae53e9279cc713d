"""Models shipped for the demo and for trying things out: subject files, as a user would write them."""
