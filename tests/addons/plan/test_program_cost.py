"""Bytes, products, kernels and collectives of a compiled GPU program, from its text."""

import pytest

from limba.addons.plan import program_cost, topologies

CHIP = topologies.CHIPS["h100"]
LAUNCH = program_cost.LAUNCH_SECONDS

PROGRAM = """
HloModule jit_step, is_scheduled=true

%add.1 (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %sum.1 = f32[] add(%a.1, %b.1)
}

%product (p.0: bf16[64,32], p.1: bf16[32,16]) -> f32[64,16] {
  %p.0 = bf16[64,32]{1,0} parameter(0)
  %p.1 = bf16[32,16]{1,0} parameter(1)
  ROOT %dot.1 = f32[64,16]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%one_row (q.0: f32[100,8], q.1: s32[]) -> f32[1,8] {
  %q.0 = f32[100,8]{1,0} parameter(0)
  %q.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,8]{1,0} dynamic-slice(%q.0, %q.1, %zero), dynamic_slice_sizes={1,8}
}

%into_row (r.0: f32[100,8], r.1: f32[1,8], r.2: s32[]) -> f32[100,8] {
  %r.0 = f32[100,8]{1,0} parameter(0)
  %r.1 = f32[1,8]{1,0} parameter(1)
  %r.2 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %written = f32[100,8]{1,0} dynamic-update-slice(%r.0, %r.1, %r.2, %zero.1)
}

%body (state: (f32[100,8], s32[])) -> (f32[100,8], s32[]) {
  %state = (f32[100,8]{1,0}, s32[]) parameter(0)
  %rows = f32[100,8]{1,0} get-tuple-element(%state), index=0
  %number = s32[] get-tuple-element(%state), index=1
  %taken = f32[1,8]{1,0} fusion(%rows, %number), kind=kLoop, calls=%one_row
  %put = f32[100,8]{1,0} fusion(%rows, %taken, %number), kind=kLoop, calls=%into_row
  ROOT %next = (f32[100,8]{1,0}, s32[]) tuple(%put, %number)
}

%condition (state.1: (f32[100,8], s32[])) -> pred[] {
  %state.1 = (f32[100,8]{1,0}, s32[]) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: bf16[64,32], y: bf16[32,16], z: f32[100,8], q: bf16[2,8,4,16], k: bf16[2,4,4,16]) -> f32[64,16] {
  %x = bf16[64,32]{1,0} parameter(0)
  %y = bf16[32,16]{1,0} parameter(1)
  %z = f32[100,8]{1,0} parameter(2)
  %q = bf16[2,8,4,16]{3,2,1,0} parameter(3)
  %k = bf16[2,4,4,16]{3,2,1,0} parameter(4)
  %xy = f32[64,16]{1,0} fusion(%x, %y), kind=kCustom, calls=%product, metadata={op_name="jit(step)/layer/dot"}
  %gemm = (bf16[64,16]{1,0}, s8[1000]{0}) custom-call(%x, %y), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %attended = (bf16[2,8,4,16]{3,2,1,0}, f32[2,4,8]{2,1,0}) custom-call(%q, %k, %k), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(step)/attention_forward/pallas_call"}
  %bits = s32[1,3,4]{2,1,0} parameter(5)
  %blocks = bf16[2,8,4,16]{3,2,1,0} custom-call(%q, %q, %q, %x, %x, %x, %bits), custom_call_target="__gpu$of_blocks", metadata={op_name="jit(step)/block_attention_query_gradients/pallas_call"}
  %back = (bf16[2,8,4,16]{3,1,2,0}, bf16[2,4,4,16]{3,1,2,0}, bf16[2,4,4,16]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %k), custom_call_target="__cudnn$fmhaSoftmaxBackward", metadata={op_name="jit(step)/dot_product_attention_bwd"}
  %start = (f32[100,8]{1,0}, s32[]) tuple(%z, %z)
  %loop = (f32[100,8]{1,0}, s32[]) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %all.start = (f32[64,16]{1,0}, f32[64,16]{1,0}) all-gather-start(%xy), replica_groups={}, dimensions={0}
  %all.done = f32[64,16]{1,0} all-gather-done(%all.start)
  ROOT %summed = f32[64,16]{1,0} all-reduce(%all.done), to_apply=%add.1
}
"""  # noqa: E501, as the compiler prints it


@pytest.fixture(scope="module")
def cost():
    return program_cost.gpu_program_cost(PROGRAM, CHIP)


def test_what_each_kernel_moves_and_multiplies(cost):
    found = {(x.kind, x.times): (x.bytes_moved, x.flops) for x in cost.operations}
    product = 2.0 * 64 * 16 * 32
    assert found["fusion", 1] == (2 * 64 * 32 + 2 * 32 * 16 + 4 * 64 * 16, product)
    # Without the scratch memory that the library asked for.
    assert found["__cublas$gemm", 1] == (2 * 64 * 32 + 2 * 32 * 16 + 2 * 64 * 16, product)
    attention = 2 * (2 * 8 * 4 * 16 + 2 * 2 * 4 * 4 * 16 + 2 * 8 * 4 * 16) + 4 * 2 * 4 * 8
    assert found["__gpu$xla.gpu.triton", 1] == (attention, 2.0 * 2 * (2 * 8 * 4 * 16) * 4)
    assert found["__cudnn$fmhaSoftmaxBackward", 1][1] == 2.0 * 5 * (2 * 8 * 4 * 16) * 4
    # Three pairs of tiles of four queries and four keys.
    assert found["__gpu$of_blocks", 1][1] == 2.0 * 3 * (2 * 4 * 16) * 3 * 4 * 4


def test_a_loop_counts_its_trips_and_slices_count_as_slices(cost):
    in_loop = [x for x in cost.operations if x.times == 7]
    # A row read and written, and the number of the row; the buffer is written in place.
    assert sorted(x.bytes_moved for x in in_loop) == [4 * 8 + 4 * 8 + 4] * 2
    assert cost.kernels == 5 + 7 * 2


def test_the_bound_is_the_longer_of_memory_and_products(cost):
    expected = sum(
        x.times * (max(x.bytes_moved / CHIP.bandwidth, x.flops / CHIP.peak) + LAUNCH) for x in cost.operations
    )
    assert cost.seconds == pytest.approx(expected)
    assert cost.by("kind")["fusion"] == pytest.approx(
        sum(x.times * x.seconds for x in cost.operations if x.kind == "fusion")
    )
    assert cost.by("where")["jit(step)/layer/dot"] > LAUNCH


def test_collectives_are_counted_apart(cost):
    found = cost.collectives
    assert (found.count, found.asynchronous, found.result_bytes) == (2, 1, 2 * 4 * 64 * 16)
    assert program_cost.collectives(PROGRAM) == found


def test_an_asynchronous_sum_has_results_alone():
    """Its start has no operands in its shape, which that of a gathering has."""
    summed = "%summed = f32[64,16]{1,0} all-reduce(%all.done), to_apply=%add.1"
    started = summed.replace("all-reduce(", "all-reduce-start(")
    text = PROGRAM.replace(f"ROOT {summed}", f"{started}\n  ROOT %end = f32[64,16]{{1,0}} all-reduce-done(%summed)")
    found = program_cost.collectives(text)
    array = 4 * 64 * 16
    assert (found.count, found.asynchronous, found.result_bytes) == (2, 2, 2 * array)
    # On a ring the sum goes around twice.
    assert found.sent_bytes == 3 * array


def test_what_is_computed_between_start_and_end_is_not_waited_for():
    array = 4 * 64 * 16
    sums = 2 * array / CHIP.link
    assert program_cost.gpu_program_cost(PROGRAM, CHIP).waited == pytest.approx(array / CHIP.link + sums)
    between = "  %gemm2 = f32[64,16]{1,0} fusion(%x, %y), kind=kCustom, calls=%product\n  %all.done"
    text = PROGRAM.replace("  %all.done", between, 1)
    kernel = (2 * 64 * 32 + 2 * 32 * 16 + array) / CHIP.bandwidth + LAUNCH
    assert kernel > array / CHIP.link
    assert program_cost.gpu_program_cost(text, CHIP).waited == pytest.approx(sums)
    # Over a slow network the kernel is a part of what is sent.
    slow = program_cost.gpu_program_cost(text, CHIP, CHIP.link / 1000).waited
    assert slow == pytest.approx(1000 * (array / CHIP.link + sums) - kernel)


def test_a_loop_without_a_count_is_told_apart():
    """As that of decoding: one turn of it is counted."""
    text = PROGRAM.replace(', backend_config={"known_trip_count":{"n":"7"}}', "")
    cost = program_cost.gpu_program_cost(text, CHIP)
    in_loop = [x for x in cost.operations if x.is_in_open_loop]
    assert [x.times for x in in_loop] == [1, 1] and cost.kernels == 5 + 2
    assert sorted(x.bytes_moved for x in in_loop) == [4 * 8 + 4 * 8 + 4] * 2


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        program_cost.gpu_program_cost("HloModule x\n", CHIP)
