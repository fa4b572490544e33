"""The verbs: the only way a method reaches another client.

A method is a program over "the clients that live here" and never knows where the others are. It calls

    each, each_of          run a function for each client that lives here
    mix                    weighted sum of the neighbours' values
    push                   send a part of what one holds; what is not acknowledged stays with its sender
    swap                   exchange one small value with each neighbour
    ask                    let each neighbour evaluate a function of my value and its own data
    mean, centres          averages at a hub: over everybody, over known clusters
    hub                    let the hub compute something from everybody's values
    most, share            the largest value of all; everybody's small values
    loop, choose           loops and branches whose messages are counted

`base.py` implements the verbs and their price once, on top of a few exchanges: to slots, to the hub, from the hub, to
partners. A carrier implements the exchanges, and a factory hands them to a run:

    here.py      what happens on this side: keys, sampling, loops, counters of messages and bytes
    messages.py  how a value becomes a message (with a codec, where there is one), and the exchanges as abstract methods
    base.py      the verbs; pushed.py the mean of many without a hub
    local.py     all clients live here: a simulation; losses.py what gets through in it
    remote.py    clients live in several processes: exchanges between neighbours, remote_hub.py all others; exchange.py
                 leaves the program, line.py numbers and checks frames, mirrors.py knows who has which copy; pipe.py
                 carries frames between two processes
    zenoh.py     carries them between members on a network: session.py (the engine's), access.py (who may do what),
                 courier.py and inbox.py (out and in, as parcels: parcel.py), patience.py (who is waited for),
                 control.py (requests), counts.py
    faults.py    what goes wrong, as settings of a run; injection.py draws it (draws.py), faulty.py does it to frames
    robust.py    bounds for what others send
    factory.py   what a run asks for the verbs
    coding.py    a codec at work in one round
    records.py   tables, traffic, arrivals; tables.py makes the tables of a graph; ledger.py sums up the traffic
"""

__all__ = ["ALL_TO_ALL", "DENSE_LIMIT", "EXCHANGE", "LOCAL"]

ALL_TO_ALL = 32  # clients up to which, without a hub, everybody sends to everybody
DENSE_LIMIT = 4096  # clients up to which a K x K matrix product beats a fold over slots
LOCAL, EXCHANGE = "local_steps", "exchange"  # scopes of the verbs' operations, by which a profile tells them apart
