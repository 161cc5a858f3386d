"""The same rounds on Flower: a federation over its Grid, and what a node does with a message.

Needs `pip install 'farfield[flower]'`. Nothing else in farfield imports this package before it is asked for.
"""
