"""Mathematics on arrays: nothing here knows of clients, messages or files."""
