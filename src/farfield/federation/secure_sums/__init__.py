"""Secure sums: the server receives the sum over the sites and no single site's numbers.

- `quantise`: numbers as whole multiples of a step, so that sums are exact;
- `summing_step`: the update step that turns a reply into such integers, and what the server makes of their sum;
- `shamir`: a secret in shares, of which so many are needed;
- `masks`: keys between two sites, masks from them, and shares sealed for one site;
- `site_session`: what a site does in a sum, and what it refuses;
- `server_session`: what the server does in a sum.

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017.
The first two need no cryptography; an engine on one machine uses them alone, and has the same bits.
"""
