"""Sites run the app of `floor_site.py` and never load this one."""

from flwr.clientapp import ClientApp

app = ClientApp()
