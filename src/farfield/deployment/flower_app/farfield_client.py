"""Sites run farfield's own app from their own installation and never load this one."""

from flwr.clientapp import ClientApp

app = ClientApp()
