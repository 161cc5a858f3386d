"""The server's side of a deployment: wait for the sites, agree with them, run the rounds."""
