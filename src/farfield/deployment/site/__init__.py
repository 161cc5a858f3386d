"""A site's side of a deployment: its file, its rows, the messages that it answers, the state that it keeps."""
