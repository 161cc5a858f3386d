"""Where things are in the output folder of a server: the run's records, and the files between its processes."""

#: A folder: the records of the run.
RUN = "run"
#: A folder: the files of Flower's processes, and the two below.
FLOWER = "flower"
#: What `farfield server` tells the ServerApp.
SETTINGS = "server.json"
#: The sites and the schema that they agreed on, for a run that is resumed.
AGREEMENT = "federated.json"
