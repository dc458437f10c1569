"""How launcher, agents and workers reach each other: the channel, the spec of a worker, the job's directory.

It uses the standard library alone and needs no site-packages, so that a worker starts fast.
"""
