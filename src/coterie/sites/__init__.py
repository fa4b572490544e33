"""Sites of a real federation: one shared file, each site's own file, keys, and what happens before and after a run."""
