"""Tables as people have them: read, described, and turned into inputs with statistics of training rows only."""
