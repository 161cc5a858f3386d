"""Farfield across machines: the server, the sites, what each site approves, and the parts of Flower between them."""
