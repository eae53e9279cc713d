"""The command ``precisionlab``: one file a command. Only ``guard`` prints errors and maps them to exit codes."""
