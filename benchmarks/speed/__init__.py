"""The speed suite: one module per case, each a ratio that is measured in one run.

    python -m benchmarks.speed                             # every case; results in benchmarks/results.json
    python -m benchmarks.speed --cases A,default-bench     # some of them; the others keep their results
    python -m benchmarks.speed.table                       # the table of docs/speed.md from the results

`peers` holds what runs in the environments of the peers; it imports torch and the peer, and nothing of Farfield.
"""
