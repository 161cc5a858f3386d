"""Images: found, decoded once into a cache, or turned into features of a frozen backbone."""
