"""`farfield doctor`: check a site or a server before it starts, one line per check."""
