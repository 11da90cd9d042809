"""What hosts answer, as frozen dataclasses, and the decoder that makes them of JSON. Pure.

decode     JSON -> dataclasses, by their type hints
fields     types of values: names, ids, times, numbers
operation  the operations of the node program

hello      the first frame, and `clock`
facts      `probe`
network    `listen` and `dial`
images     `find_image`, `offer_image` and `take_image`
queued     `queue`, `leave_queue` and `cancel_queued`
prepare    `prepare`, `start`, `abort` and `notify`
runs       `list`
attach     `attach`
recorded   `record` (for `report`) and `sample` (for `top`)
gpus       `gpus`
evidence   `evidence` and `paths`
ends       `stop`, `force` and `stale`
drain      `drain`
add        `add`, `blueprint` and `code`
rejoin     `rejoin`
signaled   `signal`, `saved` and `finish`
shell      `shell`
files      files of runs, and what was removed
finished   `finished`
ledger     the runs that ended on a host
printed    lines of JSON that scripts of ddp-orch print on hosts
"""
