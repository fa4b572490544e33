"""Which process this is, where they meet and which devices each gets: wrong settings are one sentence, at once."""

import socket

import pytest

from coterie.errors import CoterieError
from coterie.processes.address import AUTO, Address, address_of, free_port, refuse_unreachable
from coterie.processes.launch import refuse_more_than_clients, shares


def test_addresses(monkeypatch):
    assert address_of(None, None, None) is None
    found = address_of("[::1]:1234", 3, 2)
    assert (found, found.host, found.port) == (Address("[::1]:1234", 3, 2), "::1", 1234)
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CoterieError, match="finds no job of Slurm"):
        address_of("auto", None, None)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert address_of("auto", None, None) == Address(AUTO, 4, 3, patience=20)
    assert address_of("auto", None, None, 600).patience == address_of("host:1", 2, 1, 600).patience == 600


def test_a_coordinator_that_gets_its_name_later(monkeypatch):
    """As a cluster names its processes when it starts them."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port, asked = listening.getsockname()[1], []
        usual = socket.create_connection

        def connect(address, timeout):
            asked.append(address)
            if len(asked) < 3:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return usual(("127.0.0.1", port), timeout)

        monkeypatch.setattr(socket, "create_connection", connect)
        refuse_unreachable(Address(f"pod-0.pods:{port}", 2, 1))
        assert asked == [("pod-0.pods", port)] * 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((None, 2, None), "need --coordinator HOST:PORT"),
        (("host:1", 2, None), "needs --processes N and --process I"),
        (("host", 2, 0), "must be HOST:PORT of process 0, or auto, not 'host'"),
        (("host:70000", 2, 0), "must be HOST:PORT"),
        (("host:1", 0, 0), "--processes must be a whole number from 1 to 4096, not 0"),
        (("host:1", 2, 2), "--process 2: the processes are 0 to 1, because --processes is 2"),
        (("host:1", 2, -1), "--process -1: the processes are 0 to 1"),
        (("host:1", 2, 1, 0.5), "--meet-within must be from 1 to 86,400 seconds, not 0.5"),
        (("host:1", 2, 1, float("nan")), "--meet-within must be from 1 to 86,400 seconds, not nan"),
    ],
)
def test_wrong_addresses(given, sentence):
    with pytest.raises(CoterieError) as error:
        address_of(*given)
    assert sentence in str(error.value)


def test_a_coordinator_that_cannot_be_reached_and_a_port_in_use():
    with pytest.raises(CoterieError, match=r"process 1: the coordinator 127\.0\.0\.1:\d+ cannot be reached"):
        refuse_unreachable(Address(f"127.0.0.1:{free_port()}", 2, 1, patience=0.3))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refuse_unreachable(Address(address, 2, 1))
        with pytest.raises(CoterieError, match=r"port \d+ of the coordinator cannot be used"):
            refuse_unreachable(Address(address, 2, 0))


def test_gpus_are_shared_out():
    four = ["0", "1", "2", "3"]
    assert shares(2, "auto", None, four) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert shares(2, "gpu", 2, four) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert shares(3, "auto", None, four)[2] == {"CUDA_VISIBLE_DEVICES": "2"}
    assert shares(2, "cpu", 4, four) == shares(2, "auto", None, []) == [{}, {}]
    for wrong, sentence in [
        ((0, "cpu", None, []), "--processes must be a whole number from 1 to 4096, not 0"),
        ((3, "cpu", 2, []), "--devices 2 are too few for 3 processes"),
        ((2, "cpu", 3, []), "--devices 3 cannot be shared out evenly among 2 processes"),
        ((8, "auto", None, four), "8 processes: there are 4 GPUs here"),
        ((2, "gpu", 8, four), "--devices 8: there are 4 GPUs here"),
    ]:
        with pytest.raises(CoterieError) as error:
            shares(*wrong)
        assert sentence in str(error.value)
    with pytest.raises(CoterieError, match=r"3 processes are more than there are clients \(2\)"):
        refuse_more_than_clients(3, 2)
