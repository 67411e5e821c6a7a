"""One export at a time, and nothing is collected meanwhile."""

import gc
import threading

import pytest
import torch

from onnxops_core.isolation import conversion_settings, exclusive_export, without_collection


def leave_a_generator_under_no_grad() -> None:
    """Leave garbage that switches the grad mode when it is collected."""

    def generator():
        with torch.no_grad():
            yield held

    held = [generator()]
    next(held[0])


@pytest.mark.parametrize("context", [exclusive_export, without_collection])
def test_garbage_outlives_the_context_also_where_the_collector_is_run(context):
    with torch.no_grad():
        leave_a_generator_under_no_grad()
    try:
        with context():
            gc.collect()
            inside = torch.is_grad_enabled()
        gc.collect()
        after = torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)

    assert (inside, after) == (True, False)


def test_the_collector_is_on_again_after_the_last_of_contexts_that_end_in_any_order():
    first, second = without_collection(), without_collection()

    states = [gc.isenabled()]
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
        step()
        states.append(gc.isenabled())
    second.__exit__(None, None, None)

    assert states == [True, False, False, False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_a_program_froze_and_switched_off_stays_so():
    gc.freeze()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.enable()
        gc.unfreeze()


def test_another_thread_waits_for_the_end_of_an_export_and_the_same_one_does_not():
    entered = threading.Event()

    def export() -> None:
        with exclusive_export():
            entered.set()

    thread = threading.Thread(target=export)
    with exclusive_export(), exclusive_export():
        thread.start()
        waited = not entered.wait(0.1)
    thread.join()

    assert waited
    assert entered.is_set()


def test_an_error_ends_the_context():
    entered = threading.Event()

    def export() -> None:
        with exclusive_export():
            entered.set()

    with pytest.raises(KeyError), exclusive_export():
        raise KeyError
    thread = threading.Thread(target=export)
    thread.start()

    assert entered.wait(5)
    thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_a_conversion_makes_its_tensors_on_the_cpu_and_casts_none(device):
    with torch.device(device), torch.autocast("cpu", torch.bfloat16):
        with conversion_settings():
            made = torch.arange(4.0).reshape(2, 2)
            product = made @ made
        assert torch.is_autocast_enabled("cpu")

    assert (product.device.type, product.dtype) == ("cpu", torch.float32)
