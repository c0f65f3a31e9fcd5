import pytest

from limba.addons.plan import topologies


@pytest.mark.parametrize(
    ("name", "chips", "devices", "hosts", "shape"),
    [
        ("v4-8", 4, 4, 1, (2, 2, 1)),
        ("v4-32", 16, 16, 4, (2, 2, 4)),
        ("v3-8", 4, 8, 1, (2, 2)),
        ("v5e-8", 8, 8, 1, (2, 4)),
        ("v5litepod-16", 16, 16, 4, (4, 4)),
        ("v5p-16", 8, 8, 2, (2, 2, 2)),
        ("v6e-16", 16, 16, 4, (4, 4)),
        ("tpu7x-16", 8, 16, 2, (2, 2, 2)),
        ("v7x-8", 4, 8, 1, (2, 2, 1)),
    ],
)
def test_names_of_slices(name, chips, devices, hosts, shape):
    topology = topologies.find(name)
    assert (topology.num_chips, topology.num_devices, topology.num_hosts) == (chips, devices, hosts)
    assert topology.shape == shape


def test_a_device_of_tpu7x_is_half_a_chip():
    chip = topologies.find("tpu7x-8").chip
    assert (chip.memory, chip.peak_per_device) == (94.75 * topologies.GIB, 1153.5e12)
    assert topologies.peak_flops("TPU7x") == 1153.5e12


@pytest.mark.parametrize(
    ("device_kind", "count", "name"),
    [
        ("TPU v5 lite", 8, "v5e-8"), ("TPU v5", 4, "v5p-8"), ("TPU v3", 8, "v3-8"), ("TPU7x", 8, "tpu7x-8"),
        ("Tesla T4", 2, "t4-2"), ("Tesla P100-PCIE-16GB", 1, "p100-1"), ("NVIDIA A100-SXM4-40GB", 1, "a100-40gb-1"),
        ("NVIDIA L4", 1, None), ("Tesla T4", 3, None), ("cpu", 1, None),
    ],
)  # fmt: skip
def test_a_machine_that_is_there_has_a_name(device_kind, count, name):
    assert topologies.name_of(device_kind, count) == name


def test_every_name_is_found_again():
    for name in topologies.names():
        assert topologies.find(name).name == name
        assert topologies.find(name).num_devices >= 1


def test_slices_multiply_and_boxes_do_not():
    two = topologies.find("v4-32", num_slices=2)
    assert (two.all_chips, two.num_devices, two.num_hosts, two.devices_of_a_box) == (32, 32, 8, 16)
    boxes = topologies.find("h100-16")
    assert (boxes.num_hosts, boxes.devices_of_a_box) == (2, 8)
    with pytest.raises(ValueError, match="1 for GPUs"):
        topologies.find("h100-8", num_slices=2)


def test_memory_of_a_gpu_is_what_a_training_takes_of_it(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert topologies.find("h100-8").memory == pytest.approx(71.64 * topologies.GIB)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
    assert topologies.find("h100-8").memory == pytest.approx(59.7 * topologies.GIB)
    assert topologies.find("v4-8").memory == 30.75 * topologies.GIB


@pytest.mark.parametrize(
    ("name", "named"),
    [("v4-33", "v4-32"), ("v4_32", "v4-32"), ("v5e", "v5e-16"), ("h100", "h100-8"), ("a10-8", "a100-8")],
)
def test_another_name_is_answered_with_the_nearest(name, named):
    with pytest.raises(ValueError, match=f"--topology {name} is not known; (there|the nearest) are .*{named}"):
        topologies.find(name)


def test_the_five_nearest_of_a_kind():
    with pytest.raises(
        ValueError, match=r"the nearest are v4-8, v4-16, v4-32, v4-64, v4-128, and there are v4-8 to v4-2048\.$"
    ):
        topologies.find("v4-33")
    with pytest.raises(ValueError, match=r"there are v4-8, .*, v4-2048\.$"):
        topologies.find("v4-abc")


def test_a_core_of_a_chip_has_its_share_of_the_peak():
    assert topologies.peak_flops("TPU v3") == 61.5e12
    assert topologies.peak_flops("TPU v4") == 275e12
    assert topologies.peak_flops("cpu") is None
