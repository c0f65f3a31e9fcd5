"""`limba launch --to KIND`: manifests of other schedulers, which run `launch/worker.sh` on every machine.

Only `limba launch` imports it, by the table of add-ons.
"""
