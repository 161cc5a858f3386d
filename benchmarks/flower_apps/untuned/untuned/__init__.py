"""FedIIR as one would write it after Flower's tutorials."""
