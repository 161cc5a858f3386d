"""Shared by all tests."""

import torch

# Tests run in several processes; two threads in each would only get in each other's way.
torch.set_num_threads(1)
