"""The live view: a small web server on this machine that shows a bench, a training or a deployment as it goes.

It reads the records and writes nothing. It never opens target rows, so nobody can tune on held-out figures by watching.
"""
